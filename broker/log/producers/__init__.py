"""Idempotent producers of one log: their states, and the snapshots that keep them.

Start with `state`.
"""
