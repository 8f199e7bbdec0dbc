"""Fetch: slices of partitions, returned immediately or when enough data has arrived.

Start with `fetch`, the path of a fetch from its request to its response. `reader` reads within the size limits;
`session` tracks the partitions of a client that have changed (KIP-227), `sessions` caches sessions.
"""
