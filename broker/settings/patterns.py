"""Regular expressions of users: RE2's, because Python's `re` can take exponential time."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re2

__all__ = ["PatternError", "compile_pattern"]

MAX_PATTERN_LENGTH = 10_000  # characters
_MEMORY = 1 << 17  # bytes for the compiled pattern; RE2 refuses a larger one, and holds the GIL while compiling


class PatternError(ValueError):
    """A text is not a regular expression of RE2; the message gives the cause."""


def compile_pattern(pattern: str) -> "re2._Regexp":
    """Compile a pattern; a long one takes milliseconds.

    Raises PatternError.
    """
    import re2  # most brokers do not need it

    if len(pattern) > MAX_PATTERN_LENGTH:
        raise PatternError(f"longer than {MAX_PATTERN_LENGTH} characters")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        cause = error.args[0] if error.args else error
        raise PatternError(cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)) from None
