"""Prometheus metrics: all of them are declared in `registry`, and measured where the work is done.

Start with `registry`.
"""
