"""Consumer groups (KIP-848): the broker assigns partitions, and members move to their targets by their heartbeats.

Start reading in `state.py`.
"""
