"""A broker with an authorizer, and clients that certificates give principals."""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.cluster.certificates import Authority
from tests.broker.kafka_client import KafkaClient
from tests.broker.net.transport.conftest import key_store
from warmlog.broker.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from warmlog.protocol.acls import AclEntry
from warmlog.protocol.errors import ErrorCode

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SETTINGS = {
    "listener.security.protocol.map": "kafka:SSL,native:SSL",
    "ssl.client.auth": "requested",
    "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
    "authorizer.class.name": STANDARD,
    "super.users": "User:admin",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
NAMES = ("admin", "stranger", "half")
UNAUTHORIZED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
SECRET = b"RECORD-THAT-IS-SECRET"


class Certificates:
    """A CA, the broker's certificate, and contexts for the clients."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "ca")
        self.store = key_store(directory / "broker.pem", self.authority.issue("broker", subject="/CN=broker"))
        self.contexts: dict[str | None, ssl.SSLContext] = {}
        for name in (None, *NAMES):
            context = ssl.create_default_context(cafile=str(self.authority.ca))
            if name is not None:
                issued = self.authority.issue(name, subject=f"/CN={name}")
                context.load_cert_chain(issued.certificate, issued.key)
            self.contexts[name] = context
        unmapped = self.authority.issue("unmapped", subject="/O=nobody")
        self.contexts["unmapped"] = ssl.create_default_context(cafile=str(self.authority.ca))
        self.contexts["unmapped"].load_cert_chain(unmapped.certificate, unmapped.key)


def acl(
    kind: ResourceType,
    name: str,
    operation: Operation,
    *,
    permission: Permission = Permission.ALLOW,
    principal: str = "User:half",
    pattern: PatternType = PatternType.LITERAL,
) -> AclEntry:
    return AclEntry(
        resource_type=kind,
        name=name,
        pattern=pattern,
        principal=principal,
        host="*",
        operation=operation,
        permission=permission,
    )


def cluster(operation: Operation, **others: Any) -> AclEntry:
    return acl(ResourceType.CLUSTER, CLUSTER_NAME, operation, **others)


class Secured:
    """A running broker, and what tests do with it."""

    def __init__(self, broker: Running, certificates: Certificates, stack: AsyncExitStack) -> None:
        self.broker = broker
        self._certificates = certificates
        self._stack = stack
        self.admin: KafkaClient
        self.topic_id = b""

    async def client(self, name: str | None) -> KafkaClient:
        """Connect to the listener for Kafka's protocol as a principal, or without a certificate."""
        host, port = self.broker.addresses.kafka.rsplit(":", 1)
        stream = await self._stack.enter_async_context(await trio.open_tcp_stream(host, int(port)))
        encrypted = trio.SSLStream(stream, self._certificates.contexts[name], server_hostname=host)
        await encrypted.do_handshake()
        return KafkaClient(encrypted)  # type: ignore[arg-type]

    async def native(self, name: str | None) -> RawClient:
        return await self.broker.connect(tls=self._certificates.contexts[name])

    async def allow(self, *acls: AclEntry) -> None:
        """Replace all ACLs."""
        anything = {
            "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
            "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
        }  # fmt: skip
        await self.admin.ask("DeleteAcls", filters=[anything])
        if acls:
            reply = await self.admin.ask("CreateAcls", creations=[creation(each) for each in acls])
            assert not any(each["error_code"] for each in reply["results"]), reply

    async def prepare(self, topic: str, group: str, transactional_id: str) -> None:
        """Create a topic with a record, a group with an offset, and a transactional id."""
        admin = self.admin
        native = await self.native("admin")
        await native.create(topic)
        assert (await native.produce(topic, batch(SECRET))).error is ErrorCode.NONE
        await admin.ask("FindCoordinator", 3, key=group, key_type=0)
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        committed = await admin.ask(
            "OffsetCommit", 8, group_id=group, topics=[{"name": topic, "partitions": [partition]}], member_id=""
        )
        assert committed["topics"][0]["partitions"][0]["error_code"] == 0, committed
        await admin.ask("FindCoordinator", 3, key=transactional_id, key_type=1)
        producer = await admin.ask("InitProducerId", transactional_id=transactional_id, transaction_timeout_ms=60_000)
        assert producer["error_code"] == 0
        found = await admin.ask("Metadata", topics=[{"name": topic, "topic_id": bytes(16)}])
        self.topic_id = found["topics"][0]["topic_id"]


def creation(each: AclEntry) -> dict[str, Any]:
    return {
        "resource_type": each.resource_type, "resource_name": each.name, "resource_pattern_type": each.pattern,
        "principal": each.principal, "host": each.host, "operation": each.operation,
        "permission_type": each.permission,
    }  # fmt: skip


@asynccontextmanager
async def secured(certificates: Certificates, directory: Path, **settings: object) -> AsyncIterator[Secured]:
    """A broker with an authorizer, on which only User:admin may do anything."""
    given = {
        **SETTINGS,
        "ssl.keystore.location": certificates.store,
        "ssl.truststore.location": certificates.authority.ca,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    async with running(directory, given) as broker, AsyncExitStack() as stack:
        found = Secured(broker, certificates, stack)
        found.admin = await found.client("admin")
        yield found


def codes(reply: Any) -> set[int]:
    """Return every error code in a reply."""
    found: set[int] = set()
    if isinstance(reply, dict):
        for name, value in reply.items():
            if name in {"error_code", "partition_error_code"}:
                found.add(value)
            else:
                found |= codes(value)
    elif isinstance(reply, Sequence) and not isinstance(reply, str | bytes):
        for value in reply:
            found |= codes(value)
    return found
