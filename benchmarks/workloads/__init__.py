"""Workloads run by `python -m benchmarks`, each with its target.

Start with `native` (the figures of `docs/performance.md`); `kafka` compares with Kafka, `live` adds a reader of old
records, `upkeep` adds compaction and retention, and `cost` and `index` measure single mechanisms.
"""
