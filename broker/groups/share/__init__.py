"""Share groups (KIP-932): the broker assigns partitions to several members at a time, those whose state is initialized.

Start reading in `state.py`.
"""
