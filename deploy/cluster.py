#!/usr/bin/env python3
"""Run a cluster on this machine: etcd, and three brokers on the loopback addresses 127.0.0.1 to 127.0.0.3.

    cluster.py [DIRECTORY]     data in DIRECTORY, ./data/cluster by default; Ctrl-C stops everything

Every broker has the default ports at its own address. Standard library only.
"""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BROKERS = 3
CLIENT_URL = "http://127.0.0.1:2379"
PEER_URL = "http://127.0.0.1:2380"
STOP_S = 30


def etcd(directory: Path) -> list[str]:
    """Return the command that runs etcd. It forgets old changes, which brokers do not need."""
    binary = shutil.which("etcd")
    if binary is None:
        sys.exit("etcd is not installed (Debian: apt-get install etcd-server)")
    urls = ["--listen-client-urls", CLIENT_URL, "--advertise-client-urls", CLIENT_URL]
    peers = ["--listen-peer-urls", PEER_URL, "--initial-advertise-peer-urls", PEER_URL]
    member = ["--name", "one", "--initial-cluster", f"one={PEER_URL}", "--data-dir", str(directory / "etcd")]
    compaction = ["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h", "--log-level", "warn"]
    return [binary, *member, *urls, *peers, *compaction]


def refuse_taken_ports() -> None:
    """Exit if another etcd listens already: the brokers would join its cluster."""
    for url in (CLIENT_URL, PEER_URL):
        host, port = url.removeprefix("http://").split(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except OSError as error:
                sys.exit(f"{host}:{port}, where etcd is to listen: {error.strerror} (does another etcd run?)")


def broker(number: int, directory: Path) -> list[str]:
    """Return the command that runs a broker."""
    host = f"127.0.0.{number}"
    addresses = ["--kafka", f"{host}:9092", "--native", f"{host}:9091", "--http", f"{host}:9099"]
    settings = {
        "node.id": number,
        "warmlog.cluster.etcd": CLIENT_URL,
        "warmlog.cluster.id": "local",
        "default.replication.factor": BROKERS,
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    data = str(directory / f"broker-{number}")
    return [sys.executable, "-m", "warmlog", "serve", "--until-eof", "--data-dir", data, *addresses, *options]


def stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Stop processes in order, each with time to hand over what it leads."""
    for process in processes:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    """Run until a signal asks to stop, or a process ends."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "data/cluster")
    directory.mkdir(parents=True, exist_ok=True)
    refuse_taken_ports()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Brokers have process groups of their own, so that Ctrl-C does not reach them before they are stopped in order.
    log = (directory / "etcd.log").open("a")
    store = subprocess.Popen(etcd(directory), start_new_session=True, text=True, stdout=log, stderr=log)
    brokers = [
        subprocess.Popen(
            broker(number, directory),
            stdin=subprocess.PIPE,  # whose end stops it, whatever becomes of this process
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        for number in range(1, BROKERS + 1)
    ]
    status = 0
    try:
        for number, process in enumerate(brokers, 1):
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith("ready")), None)
            if line is None:
                process.wait(STOP_S)
                break
            print(f"broker {number}: {line}", end="", flush=True)
        else:
            print(f"bootstrap {','.join(f'127.0.0.{number}:9092' for number in range(1, BROKERS + 1))}", flush=True)
        while all(process.poll() is None for process in (store, *brokers)):
            try:
                brokers[0].wait(1)
            except subprocess.TimeoutExpired:
                continue
        status = 1
        names = ("etcd", *[f"broker {number}" for number in range(1, BROKERS + 1)])
        ended = [name for name, process in zip(names, (store, *brokers), strict=True) if process.poll() is not None]
        print(f"{', '.join(ended)} ended; stopping the others (etcd's log: {directory / 'etcd.log'})", file=sys.stderr)
    except (KeyboardInterrupt, SystemExit):
        print("stopping", file=sys.stderr)
    finally:
        stop([*brokers, store])
    return status


if __name__ == "__main__":
    sys.exit(main())
