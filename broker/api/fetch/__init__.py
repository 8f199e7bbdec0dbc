"""Fetch: slices of partitions, returned at once or when enough data has arrived.

Start with `fetches`. `look` reads within the size limits; `session` tracks the partitions of a client that have changed
(KIP-227), and `sessions` caches them.
"""
