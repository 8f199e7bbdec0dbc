"""Groups that change between the classic and the consumer protocol while they have members.

`upgrading.py` and `downgrading.py` convert a group's stored state; `live.py` replaces served groups.
"""
