"""How fast, how small: the figures of `docs/performance.md`, each beside what it is measured against.

Reading order: `harness` (rounds, medians, ratios), `report` (table, JSON), `load` (the load generator), `contestants`
(what is started), `echo` and `limits` (what the machine itself allows), `workloads` (what is measured); then
`live_reader`, `costs` and `index_search`, a question each.

    python -m benchmarks [WORKLOAD...] [--rounds N] [--seconds S] [--json FILE] [--quick]
"""
