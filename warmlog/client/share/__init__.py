"""Members of share groups (KIP-932): queues whose records, the jobs, are accepted, released or rejected one by one.

Start with `stream`. `broker_session` acquires records from one broker and acknowledges them, `member` keeps the
membership, `job` is what users see.
"""
