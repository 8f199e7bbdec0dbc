"""Groups of consumers: membership, rebalances and committed offsets (Kafka's group coordinator).

`service.py` wires the package, `registry.py` has the groups by name. A kind of group is a sub-package with its
automaton: `classic/` and `consumer/`. Committed offsets are the same for all kinds. `migration/` converts groups.
"""
