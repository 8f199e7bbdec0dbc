"""The idempotent and transactional producers of one log: their states, and the snapshot files.

Start with `state`.
"""
