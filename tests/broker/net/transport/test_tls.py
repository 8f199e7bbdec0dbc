"""TLS on the listeners of a broker, used by clients that behave, and by some that do not."""

import os
import ssl
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.clients import RawClient, batch, running
from tests.broker.cluster.certificates import Authority, Issued
from tests.broker.net.transport.conftest import key_store
from warmlog.broker.net.transport import handshakes
from warmlog.protocol.request import FetchPartition, FetchRequest, HelloRequest
from warmlog.testing import Broker

LIMIT_S = 30
OVER_TLS = {"listener.security.protocol.map": "kafka:SSL,native:SSL"}
VALUES = 24
REFUSED = (trio.BrokenResourceError, ssl.SSLError, AssertionError)


def settings(store: Path, **others: object) -> dict[str, object]:
    return {**OVER_TLS, "ssl.keystore.location": store, **{key.replace("_", "."): each for key, each in others.items()}}


def context_of(authority: Authority, shown: Issued | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


async def end_of(stream: trio.SocketStream) -> bytes:
    """Return what comes before the end."""
    found = b""
    with trio.fail_after(LIMIT_S):
        try:
            async for data in stream:
                found += data
        except trio.BrokenResourceError:
            pass
    return found


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_large_requests_and_replies_pass_both_versions(
    authority: Authority, store: Path, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = context_of(authority)
    context.minimum_version = context.maximum_version = version
    async with running(tmp_path / "data", settings(store), http="127.0.0.1:0") as broker:
        client, batches = await broker.connect(tls=context), b""
        await client.create("orders", max_message_bytes=str(2 << 20))
        for offset in range(VALUES):
            records = batch(os.urandom((offset + 1) * 60_000))
            assert (await client.produce("orders", records)).error == 0
            batches += offset.to_bytes(8, "big") + records[8:12] + bytes(4) + records[16:]
        asked = FetchPartition(topic="orders", partition=0, offset=0, max_bytes=1 << 30)
        reply = await client.ask(FetchRequest(partitions=(asked,), max_wait_ms=0))
        assert bytes(reply.partitions[0].records) == batches
        samples = await broker.scrape()
    assert samples['warmlog_tls_handshakes_total{listener="native",result="ok"}'] == 1
    assert samples['warmlog_tls_certificate_expiry_seconds{listener="native"}'] > 0


def test_clients_of_kafka_produce_and_consume(authority: Authority, store: Path) -> None:
    with Broker(settings=settings(store)) as broker:
        secure = {"bootstrap.servers": broker.kafka, "security.protocol": "SSL", "ssl.ca.location": str(authority.ca)}
        admin = AdminClient(secure)
        admin.create_topics([NewTopic("t", 3, 1)])["t"].result(LIMIT_S)
        producer = Producer(secure)
        for number in range(1000):
            producer.produce("t", str(number).encode())
        assert producer.flush(LIMIT_S) == 0
        consumer = Consumer({**secure, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        found = sorted(int(message.value() or b"") for message in consumer.consume(1000, LIMIT_S))
        consumer.close()
        assert found == list(range(1000))


def test_a_client_that_trusts_another_authority_does_not_connect(store: Path, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    with Broker(settings=settings(store)) as broker:
        secure = {"bootstrap.servers": broker.kafka, "security.protocol": "SSL", "ssl.ca.location": str(stranger.ca)}
        with pytest.raises(KafkaException):
            AdminClient(secure).list_topics(timeout=2)


@pytest.mark.parametrize("auth", ["requested", "required"])
async def test_certificates_of_clients_are_checked(
    authority: Authority, store: Path, tmp_path: Path, auth: str
) -> None:
    given = settings(store, ssl_client_auth=auth, ssl_truststore_location=authority.ca)
    stranger = Authority(tmp_path / "stranger").issue("client")
    async with running(tmp_path / "data", given) as broker:
        await broker.connect(tls=context_of(authority, authority.issue("client")))
        with pytest.raises(REFUSED):
            await broker.connect(tls=context_of(authority, stranger))
        if auth == "requested":
            await broker.connect(tls=context_of(authority))
        else:
            with pytest.raises(REFUSED):
                await broker.connect(tls=context_of(authority))


async def test_listeners_with_and_without_tls_serve_side_by_side(
    authority: Authority, store: Path, tmp_path: Path
) -> None:
    given = {
        "listeners": "NATIVE://127.0.0.1:0,SECURE://127.0.0.1:0,SSL://127.0.0.1:0",
        "warmlog.native.listener.names": "NATIVE,SECURE",
        "listener.security.protocol.map": "SECURE:SSL",
        "listener.name.secure.ssl.keystore.location": store,
        "listener.name.ssl.ssl.keystore.location": key_store(tmp_path / "k.pem", authority.issue("for-kafka")),
    }
    async with running(tmp_path / "data", given) as broker:
        await broker.connect()
        named, context = broker.addresses.named, context_of(authority)
        await broker.connect(tls=context, address=named["secure"])
        await broker.connect(tls=context, address=named["ssl"], hello=False)  # which is Kafka's


async def test_requests_that_come_with_the_end_of_the_handshake_are_answered(
    authority: Authority, store: Path, tmp_path: Path
) -> None:
    async with running(tmp_path / "data", settings(store)) as broker:
        stream = await broker.open_stream()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context_of(authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        is_shaken = False
        while not is_shaken:
            try:
                client.do_handshake()
                is_shaken = True
            except ssl.SSLWantReadError:
                await stream.send_all(outgoing.read())
                incoming.write(await stream.receive_some())
        frame = RawClient(stream).frame(HelloRequest(versions=(1,), client="test"))
        client.write(frame[:3])
        client.write(frame[3:])
        await stream.send_all(outgoing.read())
        found = b""
        with trio.fail_after(LIMIT_S):
            while len(found) < 4:
                try:
                    found += client.read(1 << 16)
                except ssl.SSLWantReadError:
                    incoming.write(await stream.receive_some())


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x16\x03\x01\xff\xff" + bytes(99), b"\x16\x03\x01\0\x04junk", b""]
)
async def test_what_is_not_tls_is_closed_and_counted(store: Path, tmp_path: Path, sent: bytes) -> None:
    async with running(tmp_path / "data", settings(store), http="127.0.0.1:0") as broker:
        stream = await broker.open_stream()
        await stream.send_all(sent)
        if not sent:
            await stream.send_eof()
        answer = await end_of(stream)
        assert answer == b"" or answer[0] == 21  # an alert
        counted = 'warmlog_tls_handshakes_total{listener="native",result="failed"}'
        with trio.fail_after(LIMIT_S):
            while (await broker.scrape()).get(counted) != 1:
                pass  # the event loop counts it after the thread has closed it


async def test_slow_handshakes_end(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "LIMIT_S", 0.05)
    async with running(tmp_path / "data", settings(store)) as broker:
        silent, slow = await broker.open_stream(), await broker.open_stream()
        await slow.send_all(b"\x16\x03\x01")
        assert await end_of(silent) == await end_of(slow) == b""


@pytest.mark.parametrize(
    ("limit", "addresses"),
    [("MAX_OF_ADDRESS", ("127.0.0.1",) * 3), ("MAX_IN_PROGRESS", ("127.0.0.2",) * 2 + ("127.0.0.3",))],
)
async def test_a_handshake_takes_the_place_of_one_that_is_greedy(
    authority: Authority,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    addresses: tuple[str, ...],
) -> None:
    monkeypatch.setattr(handshakes, limit, 3)
    async with running(tmp_path / "data", settings(store), http="127.0.0.1:0") as broker:
        host, _, port = broker.addresses.native.rpartition(":")
        silent = [await trio.open_tcp_stream(host, int(port), local_address=each) for each in addresses]
        with trio.fail_after(LIMIT_S):
            await (await broker.connect(tls=context_of(authority))).create("orders")
        assert await end_of(silent[0]) == b""  # the oldest of the address with most
        samples = await broker.scrape()
        assert samples['warmlog_connections_refused_total{reason="handshakes"}'] == 1
        for each in silent:
            await each.aclose()


async def test_many_silent_addresses_keep_nobody_out(
    authority: Authority, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "MAX_IN_PROGRESS", 20)
    async with running(tmp_path / "data", settings(store)) as broker, trio.open_nursery() as nursery:
        host, _, port = broker.addresses.native.rpartition(":")

        async def keep_silent(address: str) -> None:
            while True:
                async with await trio.open_tcp_stream(host, int(port), local_address=address) as stream:
                    await end_of(stream)

        for number in range(40):
            nursery.start_soon(keep_silent, f"127.0.1.{number % 4 + 1}")
        with trio.fail_after(LIMIT_S):
            for number in range(10):
                client = await broker.connect(tls=context_of(authority))
                await client.create(f"orders-{number}")
        nursery.cancel_scope.cancel()


async def test_a_stop_ends_handshakes_and_connections(authority: Authority, store: Path, tmp_path: Path) -> None:
    async with running(tmp_path / "data", settings(store)) as broker:
        silent, client = await broker.open_stream(), await broker.connect(tls=context_of(authority))
        broker.stop.set()
        with trio.fail_after(LIMIT_S):
            await broker.ended.wait()
            assert await client.reply() is None
        assert await end_of(silent) == b""


async def test_replies_to_a_client_that_never_reads_stay_within_the_budget(
    authority: Authority, store: Path, tmp_path: Path
) -> None:
    given = settings(store, warmlog_slow_peer_timeout_ms=200)
    async with running(tmp_path / "data", given, http="127.0.0.1:0") as broker:
        client = await broker.connect(tls=context_of(authority))
        await client.create("orders")
        for _ in range(VALUES):
            await client.produce("orders", batch(os.urandom(900_000)))
        asked = FetchPartition(topic="orders", partition=0, offset=0, max_bytes=1 << 30)
        await client.send(FetchRequest(partitions=(asked,), max_wait_ms=0))
        samples: dict[str, float] = {}
        evicted = 'warmlog_connections_evicted_total{reason="slow"}'
        with trio.fail_after(LIMIT_S):
            while not samples.get(evicted):
                samples = await broker.scrape()
                assert samples["warmlog_reply_bytes"] < 1 << 20
