"""Serving many clients and large requests: what each request and each partition in it costs.

Start with `workloads` (what is measured, and what is wanted), then `loads` (connections and partitions) and `clients`
(programs of other languages). `guard` is the short check that `make bench-guard` runs.
"""
