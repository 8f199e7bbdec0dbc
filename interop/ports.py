"""Choose ports for servers that must know theirs before they start."""

import socket
from random import SystemRandom

FIRST = 10_000
END = 32_768  # from here on, Linux may assign ports to sockets of any process at any time


def free_ports(count: int) -> list[int]:
    """Return consecutive ports on which no process was listening a moment ago."""
    random = SystemRandom()
    while True:
        first = random.randrange(FIRST, END - count)
        ports = range(first, first + count)
        if all(map(_is_free, ports)):
            return list(ports)


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True
