"""Clients that produce and fetch: the load under which the benchmarks measure the servers.

Start with `generator` (as fast as possible) and `paced` (a fixed rate). `native` and `kafka_wire` are the two
protocols; `client`, `confluent` and `quiet_consumer` are programs that run real client libraries.
"""
