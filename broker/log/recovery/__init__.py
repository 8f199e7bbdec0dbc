"""How a log is opened, cut, and made good after a stop or a failure.

Start with `load`.
"""
