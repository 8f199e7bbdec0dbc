"""The cluster's metadata: brokers, topics and partition states in one key-value store; every decision is a transaction.

Start with `values`, what the store contains, and `store`, the interface of etcd and of its in-memory counterpart.
`rules` decides which transaction carries out a change.
"""
