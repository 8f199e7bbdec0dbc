"""The audit log: logins, refusals and changes, as lines of JSON in a file and a topic.

`changes` has a row for each request that changes something, `events` makes OCSF events from requests and responses,
`audit_log` writes them to the file, `topic` queues them for the topic, and `topic_appends` appends them.
"""
