"""Consumer groups (KIP-848): the broker assigns partitions, and each member changes over on its own heartbeats.

Start reading in `state.py`.
"""
