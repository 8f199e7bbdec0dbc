"""A data directory: its lock and identity, its checkpoints, and what is reserved of its disk.

Start with `data_directory`.
"""
