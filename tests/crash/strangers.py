"""Send mutated bytes to the listeners of a broker before any login, for as long as you like.

    python -m tests.crash.strangers [--minutes N] [--threads N] [--seed N] [--json FILE]

Threads connect to listeners with SASL, TLS and both, of both protocols, and send requests, tokens, handshakes and
records of TLS with bits flipped, parts cut out, repeated, moved or replaced, split at random places. Meanwhile a client
of an open listener produces and fetches. The exit status is 1 if the broker ends, logs an unexpected exception, answers
the client late or not at all, or keeps memory.
"""

import argparse
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import Final

from tests.cluster.report import conclude
from tests.issuer import Issuer
from warmlog import Client
from warmlog.cli.security.certificates import make
from warmlog.protocol.native.codec import encode_request
from warmlog.protocol.native.login import AuthenticateRequest
from warmlog.protocol.request import HelloRequest

ALLOWED_GROWTH: Final = 96 << 20  # of resident memory, from the first minute to the end
ALLOWED_ANSWER_S: Final = 5.0  # on a machine that is busy with the mutations, too
READ_S: Final = 0.05
MAX_READ: Final = 64 << 10
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
NUMBERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 20)
LISTENERS: Final = ("sasl", "saslssl", "mutual", "nativesasl", "nativesaslssl")


def text(value: bytes) -> bytes:
    """A string of Kafka's protocol."""
    return pack(">h", len(value)) + value


def request(key: int, version: int, body: bytes) -> bytes:
    """A request of Kafka's protocol with its length."""
    header = pack(">hhi", key, version, 7) + text(b"stranger")
    return pack(">i", len(header) + len(body)) + header + body


def conversations(token: str) -> list[list[bytes]]:
    """What well-behaved clients send before and during a login, message by message."""
    tokens = {
        b"PLAIN": b"\0alice\0open sesame",
        b"SCRAM-SHA-256": b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL",
        b"SCRAM-SHA-512": b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL,tokenauth=true",
        b"OAUTHBEARER": b"n,a=alice,\x01auth=Bearer " + token.encode() + b"\x01\x01",
    }
    found = [[request(API_VERSIONS, version, b"") for version in (0, 1, 2)]]
    final = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    for mechanism, first in tokens.items():
        hand = request(SASL_HANDSHAKE, 1, text(mechanism))
        found.append([hand, *[request(SASL_AUTHENTICATE, 0, pack(">i", len(each)) + each) for each in (first, final)]])
        raw = [pack(">i", len(each)) + each for each in (first, final)]
        found.append([request(SASL_HANDSHAKE, 0, text(mechanism)), *raw])
        native = [HelloRequest(versions=(1,), client="stranger")]
        sent = [AuthenticateRequest(mechanism=mechanism.decode(), token=each) for each in (first, final)]
        found.append([bytes(encode_request(number, each)) for number, each in enumerate([*native, *sent])])
    return found


def client_hello() -> bytes:
    """The first record of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    connection = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def mutated(data: bytes, choose: random.Random) -> bytes:
    """Return bytes with a few faults."""
    found = bytearray(data)
    for _ in range(choose.choice((0, 1, 1, 2, 4, 16))):
        at = choose.randrange(len(found) + 1)
        match choose.randrange(7):
            case 0 if found:
                found[at % len(found)] ^= 1 << choose.randrange(8)
            case 1:
                del found[at : at + choose.randrange(64)]
            case 2:
                found[at:at] = found[at : at + choose.randrange(64)] * choose.randrange(1, 5)
            case 3:
                found[at : at + 4] = pack(">I", choose.choice(NUMBERS))
            case 4:
                found[at : at + 2] = pack(">H", choose.choice(NUMBERS) & 0xFFFF)
            case 5:
                found[at:at] = choose.randbytes(choose.randrange(200))
            case _:
                found[:4] = pack(">I", max(0, len(found) - 4 + choose.randrange(-3, 4)))
    return bytes(found)


class Strangers:
    """The threads that send, and what they did."""

    def __init__(self, addresses: dict[str, tuple[str, int]], seed: int, ca: Path, token: str) -> None:
        self._addresses = addresses
        self._seed = seed
        self._conversations = conversations(token)
        self._hello = client_hello()
        self._context = ssl.create_default_context(cafile=str(ca))
        self.counts: Counter[str] = Counter()
        self.ends = threading.Event()

    def send(self, number: int) -> None:
        """Connect, send and read until told to end."""
        choose = random.Random(self._seed * 1000 + number)
        while not self.ends.is_set():
            listener = choose.choice(LISTENERS)
            try:
                self._talk(listener, choose)
                self.counts[f"{listener}: whole"] += 1
            except (OSError, ssl.SSLError):
                self.counts[f"{listener}: closed"] += 1

    def _talk(self, listener: str, choose: random.Random) -> None:
        with socket.create_connection(self._addresses[listener], timeout=10) as connection:
            connection.settimeout(READ_S)
            is_tls = listener in {"saslssl", "mutual", "nativesaslssl"}
            if is_tls and choose.random() < 0.5:
                self._exchange(connection, [self._hello, choose.randbytes(100)], choose)
                return
            sock: socket.socket = connection
            if is_tls:
                connection.settimeout(10)
                sock = self._context.wrap_socket(connection, server_hostname="localhost")
                sock.settimeout(READ_S)
            self._exchange(sock, choose.choice(self._conversations), choose)
            if choose.random() < 0.1:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))

    def _exchange(self, sock: socket.socket, messages: Sequence[bytes], choose: random.Random) -> None:
        messages = list(messages)
        if choose.random() < 0.2:
            choose.shuffle(messages)
        for message in messages:
            data = mutated(message, choose)
            cut = choose.randrange(len(data) + 1) if choose.random() < 0.3 else 0
            for part in filter(None, (data[:cut], data[cut:])):
                sock.sendall(part)
            with suppress(TimeoutError):
                if not sock.recv(MAX_READ):
                    return


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def serve(directory: Path, issuer: Issuer) -> tuple["subprocess.Popen[str]", dict[str, tuple[str, int]]]:
    """Start a broker with a listener of each kind."""
    make(directory / "tls", hosts=["localhost", "127.0.0.1"])
    (directory / "keys.json").write_bytes(issuer.jwks)
    names = ("open", *LISTENERS)
    protocols = {"open": "PLAINTEXT", "sasl": "SASL_PLAINTEXT", "mutual": "SSL", "nativesasl": "SASL_PLAINTEXT"}
    settings = {
        "log.dirs": directory / "data",
        "listeners": ",".join(f"{name.upper()}://127.0.0.1:0" for name in (*names, "nativeopen")),
        "warmlog.native.listener.names": "NATIVESASL,NATIVESASLSSL,NATIVEOPEN",
        "listener.security.protocol.map": ",".join(
            f"{name.upper()}:{protocols.get(name, 'SASL_SSL')}" for name in names
        )
        + ",NATIVEOPEN:PLAINTEXT",
        "ssl.keystore.location": directory / "tls" / "broker.pem",
        "ssl.truststore.location": directory / "tls" / "ca.pem",
        "listener.name.mutual.ssl.client.auth": "required",
        **issuer.settings(),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "keys.json").as_uri(),
        "connection.failed.authentication.delay.ms": "0",
        "warmlog.sasl.timeout.ms": "2000",
        "log.retention.ms": "-1",
    }
    command = [sys.executable, "-m", "warmlog", "serve", "--http", "none"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    log = (directory / "broker.log").open("w")
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert broker.stdout is not None
    ready = next(line for line in broker.stdout if line.startswith("ready"))
    found = {}
    for name, address in (word.split("=", 1) for word in ready.split()[1:]):
        host, _, port = address.rpartition(":")
        if port.isdecimal():  # not of HTTP, which is off
            found[name] = (host, int(port))
    return broker, found


def main(arguments: Sequence[str]) -> int:
    """Run for the given time, and return the exit status."""
    parser = argparse.ArgumentParser(prog="tests.crash.strangers", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="warmlog-strangers-"))
    issuer = Issuer()
    broker, addresses = serve(directory, issuer)
    strangers = Strangers(addresses, options.seed, directory / "tls" / "ca.pem", issuer.token())
    threads = [threading.Thread(target=strangers.send, args=(number,)) for number in range(options.threads)]
    for thread in threads:
        thread.start()
    wrong: list[str] = []
    answers: list[float] = []
    sizes: list[int] = []
    ends_at = time.monotonic() + 60 * options.minutes
    host, port = addresses["nativeopen"]
    with Client(f"{host}:{port}", request_timeout_s=30) as client:
        client.create_topic("control", if_not_exists=True)
        while time.monotonic() < ends_at and broker.poll() is None and not wrong:
            began = time.monotonic()
            client.produce("control", value=b"%d" % len(answers))
            answers.append(time.monotonic() - began)
            if answers[-1] > ALLOWED_ANSWER_S:
                wrong.append(f"answer {len(answers)} took {answers[-1]:.1f} s")
            sizes.append(resident(broker.pid))
            time.sleep(0.2)
    strangers.ends.set()
    for thread in threads:
        thread.join()
    if broker.poll() is not None:
        wrong.append(f"the broker has ended with {broker.returncode}")
    else:
        time.sleep(5)  # until what strangers have left is closed
        sizes.append(resident(broker.pid))
        broker.terminate()
        if broker.wait(60) != 0:
            wrong.append(f"the broker has stopped with {broker.returncode}")
    first = sizes[min(len(sizes) - 1, 300)]
    if sizes[-1] - first > ALLOWED_GROWTH:
        wrong.append(f"resident memory has grown from {first >> 20} to {sizes[-1] >> 20} MiB")
    logged = (directory / "broker.log").read_text()
    wrong += [line for line in logged.splitlines() if "Traceback" in line or " ERROR " in line]
    answers.sort()
    report = {
        "connections": sum(strangers.counts.values()),
        "by_listener": dict(sorted(strangers.counts.items())),
        "answers": len(answers),
        "p50_ms": round(1000 * answers[len(answers) // 2], 2),
        "p99_ms": round(1000 * answers[len(answers) * 99 // 100], 2),
        "max_ms": round(1000 * answers[-1], 2),
        "resident_mib": {"begin": sizes[0] >> 20, "max": max(sizes) >> 20, "end": sizes[-1] >> 20},
    }
    return conclude({**report, "wrong": wrong}, directory, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
