"""Prometheus metrics and the measurement of event loop stalls.

Start with `registry`, which declares the shared metrics; a metric with a single source is declared by that source.
"""
