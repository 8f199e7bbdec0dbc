"""Quotas of clients, with Kafka's names, precedence and arithmetic: rules and values, without sockets and storage.

Start with `entities`, which decides whose quota applies; `rates` measures.
"""
