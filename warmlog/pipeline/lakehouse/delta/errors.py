"""Convert errors of the deltalake library."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from warmlog.pipeline.errors import UnavailableError

# what the library's messages have if the same commit would fail again: object_store's errors for HTTP's 401 and 403,
# codes of S3, GCS and Azure, EPERM, ENOENT, EACCES, ENOTDIR, EROFS, and the checks of deltalake
PERMANENT = re.compile(
    r"lacked the necessary privileges|lacked valid authentication|Operation not supported|not yet implemented"
    r"|<Code>(AccessDenied|NoSuchBucket|ContainerNotFound)</Code>"
    r"|\(os error (1|2|13|20|30)\)"
    r"|table is append-only|[Tt]able features"
)


@contextmanager
def delta_errors(uri: str) -> Iterator[None]:
    """Convert the library's errors to the pipeline's."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise UnavailableError(f"{uri}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return the message of an error, which the library writes in several lines, with colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return ": ".join(line.strip(" ↳") for line in text.splitlines() if line.strip(" ↳"))


def is_permanent(error: Exception) -> bool:
    """Return whether a commit that failed would fail again: no permission, no such bucket, a read-only disk."""
    return isinstance(error, FileNotFoundError) or PERMANENT.search(str(error)) is not None
