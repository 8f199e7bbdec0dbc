"""Servers that the benchmarks start: warmlog, Kafka, and the limits of the machine.

Start with `contestants` (warmlog and the references it is compared with), then `kafka` (Kafka 4.3.1 itself).
`limits` and `echo` are the references; `throttle` limits the disk, `held` and `switched` are instrumented brokers.
"""
