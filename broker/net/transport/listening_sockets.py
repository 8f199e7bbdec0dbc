"""Listening sockets: opened by this process, or inherited from its parent."""

import os
import socket
from typing import Final

from warmlog.broker.settings.listeners import join_address

STANDARD_FILES: Final = 3  # descriptors of standard input, output and error


class ListenError(Exception):
    """A socket cannot listen; `str()` names the listener, the address and the reason."""


def listen_on(name: str, address: tuple[str, int], backlog: int) -> socket.socket:
    """Return `bind` of a listener. Raises ListenError."""
    try:
        return bind(address, backlog)
    except OSError as error:
        raise ListenError(f"{name} listener: cannot listen on {join_address(*address)}: {error.strerror}") from None


def bind(address: tuple[str, int], backlog: int) -> socket.socket:
    """Return a non-blocking listening socket. Port 0: a free port; an empty host: all addresses. Raises OSError."""
    host, port = address
    addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, resolved = addresses[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(resolved)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def inherit(name: str, descriptor: int) -> socket.socket:
    """Take over a listening socket that the parent process has opened. Raises ListenError.

    It shares a queue of connections with the parent's, and with those of all other processes that inherited it.
    """
    problem = f"{name} listener: descriptor {descriptor} is not a listening socket of the parent process"
    if descriptor < STANDARD_FILES:
        raise ListenError(problem)
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        raise ListenError(problem) from None
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.close()
        raise ListenError(problem)
    os.set_inheritable(descriptor, False)
    sock.setblocking(False)
    return sock
