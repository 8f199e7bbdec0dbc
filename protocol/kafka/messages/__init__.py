"""Kafka's messages, a module per family of APIs: the values of its requests and responses, and their tables of fields.

A table says how fields become values and back, on the side of a broker and of a peer; beside it stands the answer to a
request that failed as a whole. Start with `records/produce.py`, a short one; `common.py` has what many share.
"""
