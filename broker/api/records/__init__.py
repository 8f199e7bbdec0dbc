"""Requests about records: produce, idempotent producers, offsets and their epochs, DeleteRecords, explain.

Start with `produce`, which queues batches for the writer; every other module is one family of handlers.
"""
