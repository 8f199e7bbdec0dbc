"""The topics in service, and changes of them.

Start with `topic_map`; `topic_changes` creates, changes and deletes topics.
"""
