"""Ports for servers that must be told theirs before they start."""

import socket
from random import SystemRandom

FIRST = 10_000
END = 32_768  # from here on Linux gives ports to sockets that ask for none, in any process and at any time


def free_ports(count: int) -> list[int]:
    """Return ports in a row on which nobody listened a moment ago."""
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
