"""Delivery of one partition to one share group: which record is held by whom, and how often it was delivered.

Start with `state`, an automaton without clock and I/O, whose spans are in `spans`; `deliveries` keeps one for each
share-partition of which this broker leads the partition, loads it and stores what it decides.
"""
