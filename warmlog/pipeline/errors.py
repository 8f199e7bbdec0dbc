"""Errors of the pipeline. `str()` of each is one sentence for the user: Spark shows only an exception's text."""


class PipelineError(Exception):
    """A job cannot be done as asked."""


class DataLossError(PipelineError):
    """Records that should have been read are gone; `failOnDataLoss=false` continues without them."""


class UnavailableError(PipelineError):
    """The broker cannot be reached, or cannot answer yet; trying again may help."""
