"""Common parts of consumer, share and streams groups (Kafka's package `modern`): the broker computes their assignment.

Start reading in `journal.py`: a change of a group is a record, applied first and undone if it cannot be stored.
"""
