"""Classic consumer groups: membership, rebalances and committed offsets (Kafka's group coordinator).

Start with `state.py`, one group without I/O or a clock, and `rebalance.py`, its phases. `service.py` wires the package.
"""
