"""The note in a partition's directory that says which data directory it was moved from.

A partition moves by two renames: its copy takes its name in the new data directory, then the old directory loses that
name. A broker that is killed between the two leaves two directories of one name, with the same content, and the note in
the copy says what to do about it:

    .arrival     {"version": 0, "from": <directory.id>, "confirmed": false}

    old directory                          the note says       the next start
    is there                               confirmed: false    takes the copy back: it was not appended to
    is there (its disk did not serve)      confirmed: true     puts the old one aside: the copy was appended to
    is gone                                either              removes the note
    is not known: its disk does not serve  confirmed: false    confirms the note before the copy is served

Kafka ignores files of such names.
"""

import json
from contextlib import suppress
from typing import NamedTuple

from broker.log.io.disk import Disk, read_file, replace_file

ARRIVAL = ".arrival"
VERSION = 0


class Arrival(NamedTuple):
    """Where a partition's directory came from: a directory.id; `is_confirmed`: whatever is there is out of date."""

    source_id: str
    is_confirmed: bool = False


def read_arrival(disk: Disk, directory: str) -> Arrival | None:
    """Read the note in a partition's directory; None if there is none, or it cannot be understood. Raises OSError."""
    try:
        note = json.loads(read_file(disk, f"{directory}/{ARRIVAL}"))
        return Arrival(str(note["from"]), note["confirmed"] is True)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def write_arrival(disk: Disk, directory: str, arrival: Arrival) -> None:
    """Write the note durably. Raises OSError."""
    note = {"version": VERSION, "from": arrival.source_id, "confirmed": arrival.is_confirmed}
    replace_file(disk, f"{directory}/{ARRIVAL}", json.dumps(note, separators=(",", ":")).encode(), sync=True)
    disk.sync_directory(directory)


def remove_arrival(disk: Disk, directory: str) -> None:
    """Remove the note durably, if it is there. Raises OSError."""
    with suppress(FileNotFoundError):
        disk.unlink(f"{directory}/{ARRIVAL}")
        disk.sync_directory(directory)
