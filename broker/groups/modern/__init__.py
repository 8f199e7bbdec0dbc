"""Common parts of consumer, share and streams groups (Kafka's package `modern`), whose assignments the broker computes.

Start reading in `journal.py`: a change of a group is a record, applied first and undone if it cannot be stored.
"""
