"""Fit topologies to the existing topics: the number of tasks, and missing topics.

Start with `configured.py`; `partition_counts.py` decides the numbers of partitions. `endpoints.py` lists the partitions
whose state is at a member.
"""
