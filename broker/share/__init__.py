"""Share groups at the brokers (KIP-932): delivery of records to members that acknowledge each of them.

`state/` is the share coordinator, which keeps the delivery state of share-partitions in `__share_group_state`;
`persister.py` is how the leaders of partitions and the group coordinator reach it.
"""
