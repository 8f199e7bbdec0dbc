"""The log of a coordinator: an internal, compacted topic whose latest record of each key is the coordinator's state.

`log.py` is the topic as coordinators use it: it creates the topic, and loads and unloads its partitions as this broker
begins and ceases to lead them (`term.py`). `appends.py` writes, `reading.py` reads, and `replay.py` reduces what was
read to the latest values. Groups and transactions share all of it and decode the records themselves.
"""
