"""Groups that change between the classic and the consumer protocol while they have members.

`upgrading.py` and `downgrading.py` convert what a group stores; `live.py` replaces groups that are served.
"""
