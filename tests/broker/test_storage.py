"""The end of a broker, where one of its disks has failed."""

import errno
import os
from pathlib import Path
from random import Random

from broker.log.checkpoint import CLEAN_MARKER
from broker.log.data_directories import METADATA_FILE, DataDirectories
from broker.log.data_directory import RESERVE
from broker.log.disk import Disk
from broker.log.files import OpenFiles
from broker.metadata.sqlite import SqliteMetadataStore
from broker.storage import Storage


class BrokenBelow(Disk):
    """Nothing below a path can be removed, once it is told."""

    def __init__(self) -> None:
        self.path = "\0"

    def unlink(self, path: str) -> None:
        if path.startswith(self.path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        super().unlink(path)


def test_a_directory_that_cannot_give_up_what_it_keeps_leaves_the_others_their_clean_stop(tmp_path: Path) -> None:
    disk, good, bad = BrokenBelow(), tmp_path / "good", tmp_path / "bad"
    with DataDirectories.open([good, bad], node_id=1, disk=disk) as directories:
        directories.join({}, [])
        store = SqliteMetadataStore(good / METADATA_FILE)
        storage = Storage(
            directories=directories, files=OpenFiles(disk=disk), store=store, clock=lambda: 0, random=Random(0)
        )
        directories.live[1].room.is_short = True
        disk.path = f"{bad}/{RESERVE}"
        storage.close_logs([], all_open=True)
        store.close()
    assert (good / CLEAN_MARKER).exists()
