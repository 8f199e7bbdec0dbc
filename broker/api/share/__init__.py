"""Requests of share groups about records (start with `fetch`), and about their state between brokers (`state`)."""
