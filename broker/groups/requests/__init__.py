"""The requests of groups whose assignments the broker computes: a module per kind, and `share_offsets.py`."""
