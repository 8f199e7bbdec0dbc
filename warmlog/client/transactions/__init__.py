"""Transactions: records of several partitions and offsets of a group, committed atomically.

Start with `transaction` (the public interface); `transactional_producer` is the producer behind a transactional id,
from one transaction to the next. `admin` inspects a broker's transactions; `blocking` is for plain threads.
"""
