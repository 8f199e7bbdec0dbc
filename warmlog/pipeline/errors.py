"""What the pipeline tells its user: one exception, whose text is for people.

Owns: `PipelineError`. Must not know: who raises it. (Spark prints an exception's text and drops its type, so there is
nothing to be gained by more kinds of it.)
"""


class PipelineError(Exception):
    """A job cannot be done as asked: an option, a directory, an offset, a damaged file. `str` is for people."""


class DataLossError(PipelineError):
    """Records that were to be read are gone, as after retention; `failOnDataLoss=false` reads on without them."""
