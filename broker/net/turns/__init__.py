"""The serving turn: one task that serves all ready sockets together. Start with `turn.py`."""
