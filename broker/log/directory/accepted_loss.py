"""The file with which an operator accepts a loss of records.

    DIR/t-3/.accept-loss     in a partition's directory: serve the partition without the missing files
    DIR/.accept-loss         in a data directory: stop reporting that it is an older copy

The next startup acts on it, logs this, and removes it. Kafka ignores files of this name.
"""

from contextlib import suppress

from warmlog.broker.log.io.disk import Disk

ACCEPT_LOSS = ".accept-loss"


def is_loss_accepted(disk: Disk, directory: str) -> bool:
    """Return whether a directory has the file. Raises OSError."""
    try:
        disk.identity(f"{directory}/{ACCEPT_LOSS}")
    except FileNotFoundError:
        return False
    return True


def forget_acceptance(disk: Disk, directory: str) -> None:
    """Remove the file, if it exists, and sync the directory. Raises OSError."""
    with suppress(FileNotFoundError):
        disk.unlink(f"{directory}/{ACCEPT_LOSS}")
        disk.sync_directory(directory)


def how_to_accept(directory: str) -> str:
    """Return the part of a message about restoring a partition's files or accepting their loss."""
    return f"put it back, or accept the loss with: mkdir -p {directory} && touch {directory}/{ACCEPT_LOSS}"
