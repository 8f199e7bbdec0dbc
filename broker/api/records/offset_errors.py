"""Why ListOffsets refuses a query.

Not compiled with `offsets`: mypyc would give each class the error code of its base.
"""

from warmlog.protocol.errors import ErrorCode, ProtocolError


class RepeatedQuestionError(ProtocolError):
    """A partition is named twice in one request."""

    code = ErrorCode.INVALID_REQUEST


class UnsupportedTimeError(ProtocolError):
    """A negative timestamp without a meaning in the request's version."""

    code = ErrorCode.UNSUPPORTED_VERSION


class OffsetNotAvailableError(ProtocolError):
    """The high watermark does not yet cover everything that earlier leaders have shown (KIP-207)."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE
