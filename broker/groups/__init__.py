"""Groups: membership, assignment and committed offsets (Kafka's group coordinator).

`service.py` wires the package, `registry.py` has the groups by name. Each kind of group is a sub-package with its
automaton: `classic/`, `consumer/`, `share/` and `streams/`; `modern/` has common parts of the last three. Committed
offsets are the same for all kinds. `migration/` converts groups.
"""
