"""Topologies fitted to the topics that exist: how many tasks there are, and which topics are missing.

Start reading in `configured.py`; `partition_counts.py` decides how many partitions topics are to have. `endpoints.py`
lists the partitions whose state is at a member.
"""
