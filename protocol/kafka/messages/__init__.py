"""The tables of Kafka's messages, a module per family of APIs.

Each says how fields become the values that handlers use, and what a request that failed as a whole is answered with.
`produce.py` is a short one to begin with; `common.py` has the fields that many messages share.
"""
