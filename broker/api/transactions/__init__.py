"""Requests about transactions: of transactional producers, tools, and other coordinators.

Start with `requests`. `listing` filters ListTransactions, `markers` serves WriteTxnMarkers, and `admission` queries the
coordinator before Produce begins a transaction in a partition.
"""
