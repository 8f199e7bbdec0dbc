"""Write frames into topics, each row once where that can be promised.

Start with `writer` (what Spark calls), then `rows` (from columns to rows), `task` (from rows to batches), `sender`
(from batches to the broker) and `attempts` (what earlier attempts have stored).
"""
