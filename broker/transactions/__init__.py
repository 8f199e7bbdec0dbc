"""The transaction coordinator: transactional ids with their producers, open transactions and outcomes.

`state.py` is the automaton of one transactional id, `coordinator.py` holds all of them. They only decide: `effects.py`
lists the effects that `service.py` carries out (`docs/adr/0030-transactions-decide-in-one-automaton.md`).
"""
