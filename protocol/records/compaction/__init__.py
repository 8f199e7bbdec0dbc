"""Compaction of record batches: the last offset of each key, and batches without superseded records.

Start with `filtering`, which gives the rules. `offset_map` imports the compiled map if it was built.
"""
