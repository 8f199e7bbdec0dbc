"""Streams groups (KIP-1071): members are instances of a Kafka Streams application, and get tasks of its topology.

Start with `state.py`, the automaton; `tasks.py` has the values that its parts share.
"""
