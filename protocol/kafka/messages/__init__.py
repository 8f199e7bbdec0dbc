"""Kafka's messages, a module per family of APIs: the values of its requests and responses, and their tables of fields.

A table says how fields become values and back, on the side of a broker and of a peer; beside it stands what a request
that failed as a whole is answered with. `produce.py` is a short one to begin with; `common.py` has what many share.
"""
