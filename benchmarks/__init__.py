"""Benchmarks: the figures of `docs/performance.md`, each compared with a reference.

Start with `harness` (rounds, medians, ratios), then `workloads` (the measurements), `load` (the clients), `servers`
(warmlog, Kafka and the limits of the machine) and `report` (table, JSON, pictures). The modules of `serving` and
`questions` measure one subject each.

    python -m benchmarks [WORKLOAD...] [--rounds N] [--seconds S] [--json FILE] [--quick]
"""
