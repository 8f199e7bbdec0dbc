"""Errors of the pipeline. `str()` of each is one sentence for the user: Spark shows only an exception's text."""


class PipelineError(Exception):
    """A job cannot run as requested."""


class DataLossError(PipelineError):
    """Records were deleted before they were read; `failOnDataLoss=false` continues without them."""


class UnavailableError(PipelineError):
    """The broker cannot be reached, or cannot answer yet; a retry may succeed."""


class BusyError(UnavailableError):
    """The previous transaction is still being completed; a retry will succeed."""
