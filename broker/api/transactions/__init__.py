"""Requests about transactions: those of transactional producers, of tools, and of other coordinators.

Start with `requests`. `listing` filters ListTransactions, `markers` serves WriteTxnMarkers, and `admission` asks the
coordinator before Produce begins a transaction in a partition.
"""
