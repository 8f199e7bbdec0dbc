"""Delivery of one partition to one share group: the holder of each record, and its number of deliveries.

Start with `state`, an automaton without clock and I/O, whose spans are in `spans`; `delivery` loads one for a
share-partition on the leader of its partition, and stores its decisions.
"""
