"""Settings of consumer groups, share groups and streams groups: start reading in `checks.py`.

`deliveries.py` says how records are delivered to a share group.
"""
