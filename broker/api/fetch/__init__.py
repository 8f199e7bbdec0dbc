"""Fetch: slices of partitions, returned at once or when enough data has arrived.

Start with `fetch`, which has the life of a fetch from its request to its response. `reader` reads within the size
limits; `session` tracks the partitions of a client that have changed (KIP-227), `sessions` keeps sessions.
"""
