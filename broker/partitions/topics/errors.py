"""Errors about the existence of topics."""


class TopicExistsError(Exception):
    """A topic of this name already exists."""


class UnknownTopicError(Exception):
    """A topic or partition does not exist."""


def unknown_topic(name: str) -> UnknownTopicError:
    """Return the error for a topic that does not exist."""
    return UnknownTopicError(f"no topic {name!r}")
