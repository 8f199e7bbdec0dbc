"""The note in a partition's directory that names the data directory it was moved from.

A partition is moved by two renames: the copy gets the partition's name in the new data directory, then the old
directory loses it. A broker that is killed in between leaves two directories of one name with the same content; from
the note in the copy, startup decides how to resolve that:

    .arrival     {"version": 0, "from": <directory.id>, "confirmed": false}

    old directory                 note                the next startup
    exists                        confirmed: false    undoes the move: the copy was not appended to
    exists (was offline)          confirmed: true     renames the old one as deleted: the copy was appended to
    is gone                       either              removes the note
    unknown: its disk is offline  confirmed: false    confirms the note before the copy is served

In a cluster, a replica that is created while a data directory is offline gets a confirmed note from ANYWHERE: an
earlier replica on that disk is out of date. It is removed at the first startup with all data directories. If the
replica is moved before that, the note of the copy has "replaces_all": true; after the move, it is from ANYWHERE again.

Kafka ignores files of such names.
"""

import json
from contextlib import suppress
from typing import NamedTuple

from warmlog.broker.log.io.disk import Disk, read_file, replace_file

ARRIVAL = ".arrival"
VERSION = 0
ANYWHERE = "*"  # in place of a directory.id


class Arrival(NamedTuple):
    """The directory.id of the old data directory; `is_confirmed`: its copy of the partition is out of date.

    `replaces_all`: the copies in all other data directories are out of date, too.
    """

    source_id: str
    is_confirmed: bool = False
    replaces_all: bool = False


REPLACES_ALL = Arrival(ANYWHERE, is_confirmed=True, replaces_all=True)


def read_arrival(disk: Disk, directory: str) -> Arrival | None:
    """Read the note in a partition's directory; None if it is missing or cannot be parsed. Raises OSError."""
    try:
        note = json.loads(read_file(disk, f"{directory}/{ARRIVAL}"))
        source_id = str(note["from"])
        replaces_all = source_id == ANYWHERE or note.get("replaces_all") is True
        return Arrival(source_id, note["confirmed"] is True, replaces_all)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def write_arrival(disk: Disk, directory: str, arrival: Arrival) -> None:
    """Write and sync the note. Raises OSError."""
    note = {"version": VERSION, "from": arrival.source_id, "confirmed": arrival.is_confirmed}
    if arrival.replaces_all:
        note["replaces_all"] = True
    replace_file(disk, f"{directory}/{ARRIVAL}", json.dumps(note, separators=(",", ":")).encode(), sync=True)
    disk.sync_directory(directory)


def remove_arrival(disk: Disk, directory: str) -> None:
    """Remove the note, if it exists, and sync the directory. Raises OSError."""
    with suppress(FileNotFoundError):
        disk.unlink(f"{directory}/{ARRIVAL}")
        disk.sync_directory(directory)
