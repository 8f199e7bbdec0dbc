"""Share groups on brokers (KIP-932): delivery of records to members, which acknowledge each of them.

`state/` is the share coordinator, which keeps the delivery state of share-partitions in `__share_group_state`;
`persister.py` is the interface to it for partition leaders and the group coordinator.
"""
