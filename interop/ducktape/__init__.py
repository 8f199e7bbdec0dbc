"""Kafka's own system tests, which use ducktape, against clusters of warmlogs on etcd.

Start with `__main__.py`. The tests run unmodified: each of their nodes is a set of namespaces of this machine
(`machines.py`, `account.py`), and the supposed installation of Kafka starts warmlog (`installation.py`, `server.py`).
"""
