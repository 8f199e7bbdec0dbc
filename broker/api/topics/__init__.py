"""Requests about topics: creation and deletion, metadata, replica assignments, log directories.

Start with `topics` for changes and with `metadata` for what clients ask first.
"""
