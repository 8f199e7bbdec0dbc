"""Settings of consumer groups, share groups and streams groups: start reading in `checks.py`.

`deliveries.py` has the settings of deliveries to share groups.
"""
