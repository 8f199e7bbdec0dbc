"""Native connections and cluster metadata.

Start with `session` (the protocol without I/O) and the two modules that drive it, `connection` (anyio) and `blocking`.
`cluster` tracks which broker leads a partition, and retries requests.
"""
