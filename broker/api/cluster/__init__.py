"""Requests about the cluster and this node: versions, features, controller quorum, security.

Start with `greeting`, which answers the first request of every connection.
"""
