"""The cost of each request, and of each partition in it, with many clients and large requests.

Start with `workloads` (the measurements and their targets), then `loads` (connections and partitions) and `clients`
(programs of other languages). `guard` is the short check that `make bench-guard` runs.
"""
