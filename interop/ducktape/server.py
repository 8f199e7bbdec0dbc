"""Start a server from Kafka's properties: warmlog as a broker, a member of an etcd cluster as a controller.

It waits until the server ends, and prints Kafka's message when the server has started. Tests find the server by
`installation.PROCESS_NAME` in its command line, and send it their signals.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from interop.ducktape.installation import PROCESS_NAME
from warmlog.broker.settings.settings import FIELDS

PEER_PORT = 2380
NATIVE_PORT = 9091
LOG = Path("/mnt/kafka/kafka-operational-logs/info/server.log")  # where tests read and collect it
# Kafka's defaults that differ from warmlog's.
DEFAULTS = {"min.insync.replicas": "1"}


def read_properties(path: Path) -> dict[str, str]:
    """Read a file of lines NAME=VALUE."""
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def members(properties: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return the hosts and ports of the controllers by their ids."""
    voters = (voter.split("@") for voter in properties["controller.quorum.voters"].split(","))
    addresses = {number: address.rsplit(":", 1) for number, address in voters}
    return {number: (host, int(port)) for number, (host, port) in addresses.items()}


def etcd(properties: Mapping[str, str]) -> list[str]:
    """Return the command that runs a controller's member of the etcd cluster."""
    binary = shutil.which("etcd")
    if binary is None:
        sys.exit("etcd is not installed (Debian: apt-get install etcd-server)")
    quorum = members(properties)
    name = properties["node.id"]
    host, port = quorum[name]
    client, peer = f"http://{host}:{port}", f"http://{host}:{PEER_PORT}"
    cluster = ",".join(f"{number}=http://{place}:{PEER_PORT}" for number, (place, _) in quorum.items())
    data = Path(properties["metadata.log.dir"]) / PROCESS_NAME
    data.parent.mkdir(parents=True, exist_ok=True)
    return [
        *(binary, "--name", name, "--data-dir", str(data), "--log-level", "warn", "--initial-cluster", cluster),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
    ]


def broker(properties: Mapping[str, str], file: Path) -> list[str]:
    """Return the command that runs a broker, and write its settings to a file."""
    listeners = properties["advertised.listeners"].split(",")
    protocol, _, address = listeners[0].partition("://")
    if len(listeners) > 1 or protocol != "PLAINTEXT":
        sys.exit(f"warmlog has one Kafka listener, without TLS or SASL; asked for {listeners}")
    host, port = address.rsplit(":", 1)
    settings = {
        **DEFAULTS,
        **{name: value for name, value in properties.items() if name in FIELDS},
        "warmlog.cluster.etcd": ",".join(f"http://{place}:{at}" for place, at in members(properties).values()),
        "advertised.listeners": f"kafka://{host}:{port},native://{host}:{NATIVE_PORT}",
    }
    file.write_text("".join(f"'{name}' = '{value}'\n" for name, value in settings.items()))
    ignored = sorted(properties.keys() - FIELDS.keys())
    print("ignored settings, which warmlog does not have:", ", ".join(ignored), flush=True)
    addresses = ("--kafka", f"0.0.0.0:{port}", "--native", f"0.0.0.0:{NATIVE_PORT}", "--http", "none")
    return [sys.executable, "-m", "warmlog", "serve", "--config", str(file), *addresses]


def run_etcd(command: Sequence[str]) -> int:
    """Run etcd, print a line when it is ready, and return its exit status."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        name = f"{directory}/ready"
        ready.bind(name)
        environment = {**os.environ, "NOTIFY_SOCKET": name}
        with LOG.open("a") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        ready.settimeout(0.1)
        while process.poll() is None:
            try:
                if b"READY=1" in ready.recv(4096):
                    print("Kafka Server started", flush=True)
                    break
            except TimeoutError:
                pass
        return process.wait()


def run_broker(command: Sequence[str]) -> int:
    """Run a broker, print a line when it is ready, and return its exit status."""
    with LOG.open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith("ready "):
            print("Kafka Server started", flush=True)
    return process.wait()


def main() -> int:
    """Run the server described by a file of properties."""
    path = Path(sys.argv[1])
    properties = read_properties(path)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    match properties["process.roles"]:
        case "controller":
            return run_etcd(etcd(properties))
        case "broker":
            return run_broker(broker(properties, path.with_name(f"{PROCESS_NAME}.toml")))
        case both:
            sys.exit(f"process.roles={both}: a controller is etcd here, which cannot share a process with a broker")


if __name__ == "__main__":
    sys.exit(main())
