"""Produce: from records to acknowledged batches.

Start with `producer` (adds records, bounds memory). Batches wait in the queues of `batches`; `dispatcher` decides when
they are sent and retried, and hands requests to one `broker_sender` per leader.
"""
