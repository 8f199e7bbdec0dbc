"""Share groups (KIP-932): the broker assigns each partition with an initialized state to several members.

Start reading in `state.py`.
"""
