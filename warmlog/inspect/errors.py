"""Errors of reading directories. `str()` of each is one sentence for the user; there is no other payload."""


class InspectError(Exception):
    """A directory cannot be read as asked."""


class MissingDirectoryError(InspectError):
    """A directory does not exist on this machine.

    It may not be mounted here. A partition that was deleted from an existing data directory is no such case.
    """


class WrongPathError(InspectError):
    """A path is neither a data directory nor anything in one that can be read. Commands exit with status 2."""


class SegmentGoneError(InspectError):
    """A segment's file disappeared after it was listed: retention or compaction removed it."""
