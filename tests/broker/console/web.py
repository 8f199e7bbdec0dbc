"""A browser's side of the console: requests on real sockets."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio

from tests.broker.clients import RawClient, Running, running
from tests.broker.kafka_client import kafka_client
from tests.broker.net.sasl import PASSWORD, upsertion
from warmlog.broker.security.authorizer import STANDARD_AUTHORIZER
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.request import PartitionRecords, ProduceRequest
from warmlog.protocol.scram import SCRAM_SHA_256

BASIC = {
    "warmlog.http.authentication": "basic",
    "warmlog.http.authentication.without.tls": "true",
    "connection.failed.authentication.delay.ms": "0",
}
ACLS = {**BASIC, "authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS;User:admin"}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """The console of a broker, asked by one user, or without a login."""

    def __init__(self, broker: Running, user: str = "") -> None:
        self.broker = broker
        self.user = user

    def by(self, user: str) -> "Site":
        return Site(self.broker, user)

    async def send(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        host, _, port = self.broker.addresses.http.rpartition(":")
        lines = {"Host": f"127.0.0.1:{port}", "Connection": "close"}
        if self.user:
            lines["Authorization"] = "Basic " + b64encode(f"{self.user}:{PASSWORD}".encode()).decode()
        if body:
            lines["Content-Length"] = str(len(body))
        lines |= headers or {}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            answer = b"".join([data async for data in stream])
        top, _, content = answer.partition(b"\r\n\r\n")
        first, *rest = top.decode("latin-1").split("\r\n")
        found = dict(line.split(": ", 1) for line in rest)
        return Reply(int(first.split()[1]), {name.lower(): value for name, value in found.items()}, content)

    async def get(self, path: str) -> Any:
        """Return the JSON of an answer without an error."""
        reply = await self.send(f"/api/v1/{path}")
        assert reply.status == 200, (path, reply.status, reply.body)
        return reply.json

    async def error(self, path: str) -> tuple[int, str]:
        """Return the status and the name of an error."""
        reply = await self.send(f"/api/v1/{path}")
        assert reply.status >= 400, (path, reply.body)
        return reply.status, reply.json["error"]

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        given = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        return await self.send(f"/api/v1/{path}", method="POST", headers=given, body=json.dumps(body).encode())


@asynccontextmanager
async def console(path: Path, settings: Mapping[str, object] | None = None) -> AsyncIterator[Site]:
    async with running(path / "data", settings, http="127.0.0.1:0") as broker:
        yield Site(broker)


@asynccontextmanager
async def console_with_users(
    path: Path, *users: str, settings: Mapping[str, object] | None = None
) -> AsyncIterator[Site]:
    """One whose users log in with passwords, and may do what ACLs allow."""
    async with console(path, {**ACLS, **(settings or {})}) as site:
        async with kafka_client(site.broker.addresses.kafka) as client:
            upsertions = [upsertion(user, SCRAM_SHA_256) for user in users]
            await client.ask("AlterUserScramCredentials", deletions=(), upsertions=upsertions)
        yield site


async def produce(client: RawClient, topic: str, *values: bytes | None, key: bytes | None = None) -> None:
    """Store one batch."""
    await produce_batch(client, topic, [(1_700_000_000_000 + place, key, value) for place, value in enumerate(values)])


async def produce_batch(
    client: RawClient, topic: str, records: Iterable[tuple[int, bytes | None, bytes | None]], **options: Any
) -> None:
    """Store one batch of records of (timestamp, key, value)."""
    rows = [(*record, ()) for record in records]
    entry = PartitionRecords(topic=topic, partition=0, records=memoryview(build_batch(rows, **options)))
    reply = await client.ask(ProduceRequest(partitions=(entry,)))
    assert not reply.partitions[0].error, reply


async def allow(site: Site, user: str, resource_type: int, name: str, operation: int) -> None:
    """Create an ACL."""
    creation = {
        "resource_type": resource_type, "resource_name": name, "resource_pattern_type": 3, "principal": f"User:{user}",
        "host": "*", "operation": operation, "permission_type": 3,
    }  # fmt: skip
    async with kafka_client(site.broker.addresses.kafka) as client:
        reply = await client.ask("CreateAcls", creations=[creation])
    assert [each["error_code"] for each in reply["results"]] == [0], reply
