"""Consume without a group: from fetched batches to records.

Start with `stream`, which reads the partitions of a validated `subscription`, with one `broker_fetcher` per leader.
A group member's reader uses the same stream (`warmlog.client.groups`).
"""
