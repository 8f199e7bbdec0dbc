"""Members of share groups (KIP-932): queues whose records, the jobs, are accepted, released or rejected one by one.

Start with `stream`. `broker_session` acquires records from one broker and acknowledges them, `member` maintains the
membership, `job` is the public view of a record.
"""
