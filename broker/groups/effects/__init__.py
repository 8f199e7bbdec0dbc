"""Carry out the effects of groups, a module per kind of group; their common part is in `kinds.py`."""
