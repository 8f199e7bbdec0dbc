"""Carry out the effects of groups, with a module per kind of group and the common part in `kinds.py`."""
