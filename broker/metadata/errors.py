"""Errors of the metadata, and of what a broker is configured to be part of."""


class MetadataError(Exception):
    """The store cannot be read or written: newer layout, damaged, read-only, full. `str()` is one line naming it."""


class MetadataTimeoutError(MetadataError):
    """The store of a cluster does not answer: a change may be made all the same, later."""


class CannotJoinError(Exception):
    """The broker cannot be part of the cluster as configured, or not any more. `str()` is one line for users."""
