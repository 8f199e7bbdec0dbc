"""The log of a coordinator: an internal, compacted topic whose latest record of each key is the coordinator's state.

`log.py` creates the topic, appends to it and reads it; `replay.py` reduces it to the latest values. Groups and
transactions share both and decode the records themselves.
"""
