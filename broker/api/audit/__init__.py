"""The audit log: who logged in, what was refused, and what was changed, as lines of JSON in a file and a topic.

`changes` has a row for each request that changes something, `events` turns requests and responses into events of OCSF,
`audit_log` writes them to the file, `topic` queues them for the topic, and `topic_appends` appends them.
"""
