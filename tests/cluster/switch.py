"""Network namespaces, joined by a switch in this process that can cut, delay and lose packets between any two of them.

    namespace of broker 1   tun 10.77.0.1 --+
    namespace of broker 2   tun 10.77.0.2 --+-- Switch
    this namespace          tun 10.77.0.9 --+

It needs nothing of the kernel but namespaces and TUN devices: no bridge, netem or packet filter. Give this process a
network namespace of its own (`unshare --net`), so that nothing of the machine's network is touched.
"""

import fcntl
import os
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from heapq import heappop, heappush
from random import Random
from types import TracebackType
from typing import NamedTuple, Self

from interop.nodes import Place

NETWORK = "10.77.0."
MTU = 9000
NO_NETWORK = 3  # exit status of a script that gets a NetworkError
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SOURCE_AT, _DESTINATION_AT = 15, 19  # the last byte of both addresses in an IPv4 header
_TURN_S = 0.1


class NetworkError(Exception):
    """Namespaces or TUN devices cannot be made here. `str()` says why, in one line."""


class Link(NamedTuple):
    """What happens to packets from one place to another. `loss`: the share that is lost."""

    delay_s: float = 0.0
    loss: float = 0.0


class Switch:
    """Forwards packets between the namespaces that are plugged in. A context manager: it runs inside."""

    def __init__(self, seed: int = 0) -> None:
        self._devices: dict[int, int] = {}  # file descriptors by the last byte of their address
        self._namespaces: list[str] = []
        self._links: dict[tuple[int, int], Link] = {}  # those that are not perfect; replaced as a whole
        self._delayed: list[tuple[float, int, int, bytes]] = []  # a heap: when, number, destination, packet
        self._random = Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forward, name="switch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.remove()

    def remove(self) -> None:
        """Remove the devices and the namespaces. Done on leaving."""
        for device in self._devices.values():
            os.close(device)
        for name in self._namespaces:
            _ip("netns", "delete", name)

    def plug(self, number: int, namespace: str | None = None) -> Place:
        """Make a namespace, or take this one, and plug it in; call it before entering. Raises NetworkError."""
        device = f"tun{number}"
        self._devices[number] = _open_tun(device)
        inside: tuple[str, ...] = ()
        if namespace is not None:
            _ip("netns", "add", namespace)
            self._namespaces.append(namespace)
            _ip("link", "set", device, "netns", namespace)
            inside = ("-n", namespace)
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "address", "add", f"{NETWORK}{number}/24", "dev", device)
        _ip(*inside, "link", "set", device, "mtu", str(MTU), "up")
        prefix = () if namespace is None else ("ip", "netns", "exec", namespace)
        return Place(f"{NETWORK}{number}", prefix)

    def set(self, sources: Iterable[int], destinations: Iterable[int], link: Link) -> None:
        """Change the links from each of these places to each of those, one way."""
        ends = list(destinations)
        self._links = {**self._links, **{(a, b): link for a in sources for b in ends if a != b}}

    def cut(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Lose everything between these places and those, both ways, without a word to either."""
        here, there = list(some), list(others)
        self.set(here, there, Link(loss=1.0))
        self.set(there, here, Link(loss=1.0))

    def unplug(self, number: int) -> None:
        """Cut a place off from all others."""
        self.cut([number], self._devices)

    def heal(self) -> None:
        """Make all links perfect again. What is delayed still arrives late."""
        self._links = {}

    def _forward(self) -> None:
        with selectors.DefaultSelector() as ready:
            for device in self._devices.values():
                ready.register(device, selectors.EVENT_READ)
            while not self._stop.is_set():
                for key, _ in ready.select(self._wait_s()):
                    with suppress(BlockingIOError):
                        while True:
                            self._pass(os.read(key.fd, MTU + 64))
                self._deliver_delayed()

    def _wait_s(self) -> float:
        return min(_TURN_S, max(0.0, self._delayed[0][0] - time.monotonic())) if self._delayed else _TURN_S

    def _pass(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4:  # neighbour discovery of IPv6
            return
        destination = packet[_DESTINATION_AT]
        link = self._links.get((packet[_SOURCE_AT], destination))
        if link is None:
            self._deliver(destination, packet)
        elif link.loss and self._random.random() < link.loss:
            pass
        elif link.delay_s:
            heappush(self._delayed, (time.monotonic() + link.delay_s, id(packet), destination, packet))
        else:
            self._deliver(destination, packet)

    def _deliver_delayed(self) -> None:
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, destination, packet = heappop(self._delayed)
            self._deliver(destination, packet)

    def _deliver(self, destination: int, packet: bytes) -> None:
        device = self._devices.get(destination)
        if device is not None:
            with suppress(OSError):  # its queue is full, or its namespace is going away: a lost packet
                os.write(device, packet)


def _open_tun(name: str) -> int:
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        raise NetworkError(f"/dev/net/tun: {error.strerror}") from error
    return device


def _ip(*words: str) -> None:
    try:
        subprocess.run(("ip", *words), check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise NetworkError("not installed: ip (Debian: iproute2)") from None
    except subprocess.CalledProcessError as error:
        raise NetworkError(f"ip {' '.join(words)}: {error.stderr.strip()}") from error
