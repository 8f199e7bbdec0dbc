"""Write frames to topics, each row exactly once where the sink can guarantee it.

Start with `writer` (what Spark calls), then `rows` (from columns to rows), `task` (from rows to batches), `sender`
(from batches to the broker) and `attempts` (what earlier attempts have stored).
"""
