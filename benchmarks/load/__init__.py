"""Clients that produce and fetch: their load is what the benchmarks measure the servers with.

Start with `generator` (as fast as possible) and `paced` (a fixed rate). `native` and `kafka_wire` are the two
protocols; `client`, `confluent` and `quiet_consumer` are programs that run real client libraries.
"""
