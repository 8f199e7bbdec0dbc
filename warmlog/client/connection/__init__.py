"""Native connections and cluster metadata.

Start with `session` (the protocol without I/O) and its two faces, `connection` (anyio) and `blocking`. `cluster` knows
which broker leads a partition and retries requests.
"""
