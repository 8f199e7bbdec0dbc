"""Fetch: slices of partitions, returned at once or when enough data has arrived.

Start with `fetch.Fetches`; `sessions` keeps the partitions of each client (KIP-227) and tracks which have changed.
"""
