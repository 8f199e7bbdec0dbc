"""Programs and measurements that answer one question each.

Each module states its question and its command, for example `python -m benchmarks.questions.large_requests`: how much
a large request delays other clients. `costs`, `live_reader` and `upkeep` are run by `workloads`. `clients/` is about
clients of Kafka's protocol.
"""
