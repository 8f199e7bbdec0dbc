"""Data directories: their locks and identities, checkpoints, recovery receipts and the disk reserve.

Start with `data_directory`; `data_directories` manages those of one broker.
"""
