"""Kafka's protocol: decode frames into neutral requests and encode neutral responses.

Start with `api.py`, the table of APIs and the `Codec` that connections use; then `codec/schema.py` (tables of fields)
and one module of `messages/`. `peer.py` is the client side, for connections to other brokers.
"""
