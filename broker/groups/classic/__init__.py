"""Classic groups: a generation, its members and a leader that assigns partitions, as Kafka's ClassicGroup.

Start with `state.py`, one group without I/O or a clock, and `rebalance.py`, its phases.
"""
