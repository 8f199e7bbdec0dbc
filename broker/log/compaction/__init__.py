"""Compaction: choose a log's dirty range, rewrite it in a child process, swap in the cleaned segments.

Start with `plan`; `run` is the work in the child process, `recovery.swap` the exchange of files.
"""
