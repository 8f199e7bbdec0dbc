"""Compaction: which segments, how they are rewritten in a child process, and the swap.

Start with `plan`.
"""
