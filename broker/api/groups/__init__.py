"""Requests about groups.

Start with `kafka_groups`; `native_groups` serves the same groups over the native protocol.
"""
