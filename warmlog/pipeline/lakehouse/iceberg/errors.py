"""Errors of the pyiceberg library and of what its catalogs use."""

import errno
import re

PERMANENT_NUMBERS = frozenset({errno.EPERM, errno.EACCES, errno.ENOTDIR, errno.EROFS})

# in messages of S3 through pyarrow, of AWS through boto3, of SQLite and of PostgreSQL, which have no type of their own
PERMANENT_TEXT = re.compile(
    r"ACCESS_DENIED|AccessDenied|NO_SUCH_BUCKET|NoSuchBucket|attempt to write a readonly database|permission denied"
)


def is_permanent(error: Exception) -> bool:
    """Return whether a commit that failed would fail again: no permission, no such bucket, a read-only disk.

    A missing file is none of these: a commit of another program may have removed it, and the next attempt reads that.
    """
    from pyiceberg import exceptions

    refused = (
        exceptions.BadRequestError,
        exceptions.ForbiddenError,
        exceptions.NoSuchNamespaceError,
        exceptions.NoSuchTableError,
        exceptions.OAuthError,
        exceptions.UnauthorizedError,
        NotImplementedError,
        PermissionError,
    )
    if isinstance(error, refused):
        return True
    if isinstance(error, OSError) and error.errno in PERMANENT_NUMBERS:
        return True
    return PERMANENT_TEXT.search(str(error)) is not None


def first_line(error: Exception) -> str:
    """Return the message of an error without what SQLAlchemy appends to it: a statement, its parameters, a link."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def has_equality_deletes(error: Exception) -> bool:
    """Return whether pyiceberg refuses to read a table because another program has written equality deletes."""
    return isinstance(error, ValueError) and "equality deletes" in str(error)


def reason(error: Exception) -> str:
    """Return what to say of an error: a line. For a lock of Hive, say how it ends; pyiceberg names a number only."""
    from pyiceberg.exceptions import WaitingForLockException

    if has_equality_deletes(error):
        return (
            "another program has deleted rows by equality deletes, which pyiceberg does not read: rewrite the files"
            " first (rewrite_data_files of Iceberg with delete-file-threshold 1), or roll the table back"
        )
    if not isinstance(error.__cause__, WaitingForLockException):
        return first_line(error)
    return (
        "another program holds the table's lock in the metastore, which ends the lock of a killed program after"
        " metastore.txn.timeout if its housekeeping runs; SHOW LOCKS names the lock"
    )
