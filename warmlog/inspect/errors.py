"""Errors of reading directories. `str()` of each is one sentence for the user; they have no other attributes."""


class InspectError(Exception):
    """A directory cannot be read as requested."""


class MissingDirectoryError(InspectError):
    """A directory does not exist on this machine.

    It may not be mounted. A partition deleted from an existing data directory does not raise this error.
    """


class WrongPathError(InspectError):
    """A path is neither a data directory nor a readable part of one. Commands exit with status 2."""


class SegmentGoneError(InspectError):
    """A segment's file disappeared after it was listed: retention or compaction removed it."""
