"""Choose ports for servers that must know theirs before they start."""

import atexit
import fcntl
import socket
import tempfile
from functools import cache
from itertools import cycle
from pathlib import Path
from random import SystemRandom
from typing import IO

FIRST = 10_000
END = 32_768  # from here on, Linux may assign ports to sockets of any process at any time
BLOCK = 256
"""Ports of one process. No other process of this user chooses them while it lives."""


def free_ports(count: int) -> list[int]:
    """Return consecutive ports that no process uses, of the block that belongs to this process.

    A port is chosen again only after all others of the block, so that two servers of one test
    differ also while neither has started. Raises RuntimeError if the block has no such ports.
    """
    block = _block()
    for _ in range(BLOCK):
        ports = [block.next_port() for _ in range(count)]
        if ports[-1] - ports[0] == count - 1 and all(map(_is_free, ports)):
            return ports
    raise RuntimeError(f"no {count} consecutive free ports from {block.first} on")


class _Block:
    """Ports from `first` on, in turn. The lock is held until the process ends."""

    def __init__(self, first: int, lock: IO[str]) -> None:
        self.first = first
        self._lock = lock
        self._turn = cycle(range(first, first + BLOCK))

    def next_port(self) -> int:
        return next(self._turn)


@cache
def _block() -> _Block:
    """Return the block of this process. Raises RuntimeError if other processes hold all of them."""
    locks = Path(tempfile.gettempdir()) / "warmlog-ports"
    locks.mkdir(exist_ok=True)
    blocks = range(FIRST, END - BLOCK, BLOCK)
    for first in SystemRandom().sample(blocks, len(blocks)):
        lock = (locks / str(first)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            atexit.register(lock.close)
            return _Block(first, lock)
    raise RuntimeError(f"other processes hold all blocks of ports, by locks in {locks}")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True
