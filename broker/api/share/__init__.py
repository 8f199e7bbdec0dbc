"""Requests of share groups about records (`fetch`, where to start), and about their state between brokers (`state`)."""
