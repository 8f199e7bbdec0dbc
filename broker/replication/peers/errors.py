"""Errors of connections to other brokers. `str()` gives one line that names the peer."""


class PeerError(Exception):
    """Base class of these errors."""


class PeerUnavailableError(PeerError):
    """The peer cannot be reached, closed the connection, or did not answer in time. A retry may succeed."""


class PeerInvalidError(PeerError):
    """The peer does not speak Kafka's protocol, or violated it. The connection was closed."""


class PeerUnsupportedError(PeerError):
    """The peer supports no usable version of an API. A retry does not help."""


class PeerRequestError(PeerError):
    """A request cannot be encoded: a value is out of range."""
