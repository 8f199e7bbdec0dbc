"""Transactions: records of several partitions and offsets of a group, committed together or not at all.

Start with `transaction` (what a program works with); `transactional_producer` is the producer behind a transactional
id, from one transaction to the next. `admin` looks at the transactions of a broker; `blocking` is for plain threads.
"""
