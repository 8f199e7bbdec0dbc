"""Opening a log, repairing it after an unclean stop or a failure, truncating it.

Start with `load`; `unclean` decides where a damaged log is cut, `rebuild` is the scan they share.
"""
