"""The topics in service, and changes of them.

Start with `topic_map`; `topics` creates, changes and deletes topics.
"""
