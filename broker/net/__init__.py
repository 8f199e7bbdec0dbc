"""Sockets: the listeners of both protocols, and HTTP for people and Prometheus.

Start with `turn`, which serves all ready sockets together. `channel` is one socket, `connection` its state without I/O.
"""
