"""What `serve` tells a service manager that asked to be told (systemd, `Type=notify`): when it serves.

Owns: the message and the way it goes. Must not know what the broker does. Whoever asked for nothing is told nothing,
and a manager that cannot be reached is no reason not to serve.

Source: sd_notify(3): one datagram to the socket that $NOTIFY_SOCKET names, which begins with @ where it is in Linux's
abstract namespace.
"""

import logging
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)

READY = b"READY=1"


def tell_ready(environ: Mapping[str, str]) -> None:
    """Tell that all listeners accept, if `environ` says that somebody waits for it."""
    address = environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.connect(address)
            sock.send(READY)
    except OSError as error:
        logger.warning("the service manager could not be told that the broker serves: %s", error)
