"""Requests that describe or change settings of topics, the broker and its loggers.

Start with `configs`; `config_entries` formats settings for replies, `loggers` maps Kafka's log levels.
"""
