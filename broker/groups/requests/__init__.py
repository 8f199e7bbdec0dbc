"""The requests of groups in which the broker assigns partitions: `consumer.py`, `share.py` and `share_offsets.py`."""
