"""The runtime of coordinators: everything that groups and transactions have in common.

A coordinator keeps its state in an internal, compacted topic, one shard for each partition that this broker leads. It
gives the runtime a description of the topic (`topic.py`) and the rules of its state (`shard.py`, where to start), and
gets shards that are loaded and unloaded (`runtime.py`, `term.py`, `loading.py`), appends that are reported when
they are stored (`appends.py`), answers that wait for them (`answers.py`), effects in order (`effects.py`), timers
(`timers.py`) and queues for coordinators on other brokers (`peer_queue.py`).
"""
