"""Write frames to topics, each row exactly once if the sink can guarantee it.

Start with `writer` (called by Spark), then `rows` (from columns to rows), `task` (from rows to batches), `sender` (from
batches to the broker) and `attempts` (records stored by earlier attempts).
"""
