"""Benchmarks: the figures of `docs/performance.md`, each compared with a reference.

Reading order: `harness` (rounds, medians, ratios), `report` (table, JSON), `load` (the load generator), `contestants`
(the servers), `echo` and `limits` (the limits of the machine), `workloads` (what is measured); then `live_reader`,
`costs` and `index_search`, which answer one question each.

    python -m benchmarks [WORKLOAD...] [--rounds N] [--seconds S] [--json FILE] [--quick]
"""
