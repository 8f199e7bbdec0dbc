"""Network namespaces joined by a bridge, as a container engine makes them.

    host        127.0.0.1:PORT -- forwarder --+
                172.30.77.1 (bridge) ---------+--- 172.30.77.2 container
                                              +--- 172.30.77.3 neighbour

`host` is a namespace, too, so that nothing of the real machine's network is touched. The forwarder is what an engine
puts behind a mapped port: who comes through it comes from the bridge's address, the container's default gateway.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

import pytest

from tests.requires import lacks

GATEWAY, CONTAINER, NEIGHBOUR = "172.30.77.1", "172.30.77.2", "172.30.77.3"
FORWARDER = """
import asyncio, sys

async def pump(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()

async def accepted(reader, writer):
    away = await asyncio.open_connection(sys.argv[2], int(sys.argv[1]))
    await asyncio.gather(pump(reader, away[1]), pump(away[0], writer))

async def main():
    server = await asyncio.start_server(accepted, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
_numbers = count()


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Names of the three, for `command`."""

    host: str
    container: str
    neighbour: str

    def command(self, namespace: str, *words: str) -> list[str]:
        """A command that runs in a namespace."""
        return ["ip", "netns", "exec", namespace, *words]

    @contextmanager
    def mapped_port(self, port: int) -> Iterator[None]:
        """127.0.0.1:port on the host leads to the same port of the container."""
        command = self.command(self.host, sys.executable, "-c", FORWARDER, str(port), CONTAINER)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarder:
            try:
                assert forwarder.stdout is not None
                assert forwarder.stdout.readline() == "ready\n"
                yield
            finally:
                forwarder.terminate()


@contextmanager
def bridged() -> Iterator[Namespaces]:
    """Three namespaces; skips the test where they may not be made."""
    if shutil.which("ip") is None:
        lacks("not installed: ip (Debian: iproute2)")
    number = f"{os.getpid()}-{next(_numbers)}"
    names = Namespaces(*(f"warmlog-{part}-{number}" for part in ("host", "container", "neighbour")))
    with ExitStack() as stack:
        for name in (names.host, names.container, names.neighbour):
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"network namespaces may not be made here: {made.stderr.strip()}")
            stack.callback(_ip, "netns", "delete", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", names.host, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", names.host, "address", "add", f"{GATEWAY}/24", "dev", "bridge0")
        _ip("-n", names.host, "link", "set", "bridge0", "up")
        _plug(names.host, names.container, CONTAINER)
        _plug(names.host, names.neighbour, NEIGHBOUR)
        yield names


def _plug(host: str, name: str, address: str) -> None:
    """A cable from the bridge to a namespace, whose default gateway the bridge is."""
    port = f"to-{address.rpartition('.')[2]}"
    _ip("-n", host, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("-n", host, "link", "set", port, "master", "bridge0", "up")
    _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("-n", name, "route", "add", "default", "via", GATEWAY)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def run(command: Sequence[str]) -> str:
    """A command's output. Fails the test where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
