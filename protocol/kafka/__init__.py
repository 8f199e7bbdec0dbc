"""Kafka's protocol: frames to neutral requests, neutral responses to frames.

Read `primitives.py` (integers, strings, tags, the bounds), `schema.py` (tables of fields), then one family, then
`api.py`, which has the one table of APIs and the face that a connection uses.
"""
