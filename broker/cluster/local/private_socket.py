"""A Unix socket that only this user can connect to, since a writer of the store decides which records are kept."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from warmlog.broker.cluster.local.socket_store import SCHEME


@contextmanager
def private_socket() -> Iterator[socket.socket]:
    """Listen on a socket in a temporary directory, which is removed afterwards. Raises OSError.

    The path of a data directory may be too long for a socket (107 bytes).
    """
    of_this_user = tempfile.TemporaryDirectory(prefix="warmlog-nodes-")  # created with mode 0700
    with of_this_user as directory, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        path = os.path.join(directory, "store")
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen()
        yield sock


def url_of(sock: socket.socket) -> str:
    """Return the value of `warmlog.cluster.etcd` for a socket."""
    return f"{SCHEME}{sock.getsockname()}"
