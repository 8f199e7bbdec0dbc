"""Errors of the metadata store, and of joining a cluster."""


class MetadataError(Exception):
    """The store cannot be read or written: newer layout, damaged, read-only, full. `str()` is one line naming it."""


class MetadataTimeoutError(MetadataError):
    """The store of a cluster does not answer. The change may still be committed later."""


class CannotJoinError(Exception):
    """The broker cannot be, or remain, part of the cluster as configured. `str()` is one line for users."""
