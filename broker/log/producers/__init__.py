"""The idempotent and transactional producers of one log: their states, and the snapshot files.

Start with `state` and `transitions`; `table` holds the producers of one log.
"""
