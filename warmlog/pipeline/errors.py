"""Errors of the pipeline. `str()` of each is one sentence for the user: Spark shows only an exception's text."""


class PipelineError(Exception):
    """A job cannot run as requested."""


class DataLossError(PipelineError):
    """Records were deleted before they were read; `failOnDataLoss=false` continues without them."""


class UnavailableError(PipelineError):
    """No broker can be reached, or it cannot answer yet; a retry may succeed."""


class BusyError(UnavailableError):
    """The previous transaction is still being completed; a retry will succeed."""


class MovedError(UnavailableError):
    """Another broker leads the partition, or coordinates the group or transaction; a retry goes there."""
