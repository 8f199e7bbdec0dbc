"""The write side of a log: plan, write and commit batches, roll to new segments, flush.

Start with `log_appends`, which callers use as `log.appends`; `appender` has the algorithm, `durability` the flushes.
"""
