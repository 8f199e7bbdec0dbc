"""The data directories: startup, files of partitions, checkpoints, and worker threads of each disk.

Start with `storage`.
"""
