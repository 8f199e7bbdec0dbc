"""The data directories at work: startup, files of partitions, checkpoints, and a set of worker threads per disk.

Start with `storage`.
"""
