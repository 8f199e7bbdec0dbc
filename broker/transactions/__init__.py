"""Transactions: which producer owns a transactional id, which partitions it has written to, how it ended.

`state.py` is one transactional id as an automaton; `coordinator.py` all of them. Both decide only: `effects.py` lists
what has to be done outside, and `docs/adr/0030-transactions-decide-in-one-automaton.md` who does it.
"""
