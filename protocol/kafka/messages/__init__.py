"""Kafka's messages, one module per family of APIs: values of requests and responses, and their tables of fields.

A table maps fields to values and back, for both a broker and a peer. Next to each table is the response to a request
that failed as a whole. Start with `records/produce.py`, a short module; `common.py` has the parts that many modules
share.
"""
