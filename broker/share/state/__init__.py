"""The share coordinator: delivery state of share-partitions, kept in `__share_group_state` (KIP-932).

Start with `service.py`, which constructs the parts. `rules.py` decides which record a request writes, and applies
records to states, without clock or I/O; `shard.py` has the states of one log partition, `coordinator.py` answers
requests once their records are stored, and `client.py` reaches the coordinator of a key on any broker.
"""
