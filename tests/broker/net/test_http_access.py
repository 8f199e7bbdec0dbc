"""HTTP with logins and encryption: who may read metrics, and what everyone may."""

import logging
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.broker.clients import Running, running
from tests.broker.cluster.certificates import Authority
from tests.broker.kafka_client import kafka_client
from tests.broker.net.sasl import PASSWORD, upsertion
from tests.broker.net.transport.conftest import key_store
from tests.issuer import Issuer, running_issuer
from warmlog.broker.net.http.http_listener import MAX_CONNECTIONS
from warmlog.broker.security.authorizer import STANDARD_AUTHORIZER
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.types import SettingError
from warmlog.broker.start_errors import first_of
from warmlog.protocol.scram import SCRAM_SHA_256

OPEN = ("/", "/healthz", "/readyz", "/nowhere")
BASIC = {
    "warmlog.http.authentication": "basic",
    "warmlog.http.authentication.without.tls": "true",
    "connection.failed.authentication.delay.ms": "0",
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca") / "ca")


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@asynccontextmanager
async def serving(path: Path, given: dict[str, str]) -> AsyncIterator[Running]:
    async with running(path / "data", given, http="127.0.0.1:0") as broker:
        async with kafka_client(broker.addresses.kafka) as client:
            upsertions = [upsertion(user, SCRAM_SHA_256) for user in ("alice", "bob")]
            await client.ask("AlterUserScramCredentials", deletions=(), upsertions=upsertions)
        yield broker


async def get(
    broker: Running, path: str = "/metrics", authorization: str = "", tls: ssl.SSLContext | None = None
) -> tuple[int, str]:
    """Return the status of a response, and its whole text."""
    host, _, port = broker.addresses.http.rpartition(":")
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = await trio.open_tcp_stream(host, int(port))
    if tls is not None:
        stream = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
    header = f"Authorization: {authorization}\r\n" if authorization else ""
    async with stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n".encode())
        text = b"".join([data async for data in stream]).decode()
    return int(text.split()[1]), text


def basic(user: str, password: str = PASSWORD) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


async def test_without_the_setting_everyone_reads_metrics(tmp_path: Path) -> None:
    async with serving(tmp_path, {}) as broker:
        assert (await get(broker))[0] == 200
        assert (await get(broker, authorization=basic("alice", "wrong")))[0] == 200


async def test_a_user_with_a_password_reads_metrics(tmp_path: Path) -> None:
    async with serving(tmp_path, BASIC) as broker:
        status, text = await get(broker, authorization=basic("alice"))
        assert status == 200
        assert "warmlog_ready 1" in text
        assert (await get(broker, authorization=basic("alice").replace("Basic", "bASIC ")))[0] == 200
        assert 'warmlog_logins_total{listener="http",mechanism="BASIC",result="ok"} 1.0' in text
        for path in OPEN:
            assert (await get(broker, path))[0] in {200, 404}


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        basic("alice", "wrong"),
        basic("nobody"),
        basic("", ""),
        basic("alice", ""),
        "Basic",
        "Basic !!!",
        "Basic " + b64encode(b"\xff").decode(),
        "Basic " + b64encode(b"alice").decode(),
        "Basic " + b64encode(f"alice\0:{PASSWORD}".encode()).decode(),
        "Bearer abc",
        "Digest username=alice",
        basic("alice") + "\r\nAuthorization: " + basic("alice"),
        basic("a" * 2000),
    ],
)
async def test_others_are_asked_for_one(tmp_path: Path, authorization: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving(tmp_path, BASIC) as broker:
            status, text = await get(broker, authorization=authorization)
            assert status == 401
            assert 'www-authenticate: Basic realm="warmlog", charset="UTF-8"\r\n' in text
            assert "warmlog_" not in text
            for path in OPEN:
                assert (await get(broker, path, authorization))[0] in {200, 404}
    assert PASSWORD not in caplog.text
    assert "wrong" not in caplog.text


async def test_a_wrong_password_is_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, BASIC) as broker:
        await get(broker, authorization=basic("alice", "wrong"))
        _, text = await get(broker, authorization=basic("alice"))
    assert 'warmlog_logins_total{listener="http",mechanism="BASIC",result="failed"} 1.0' in text
    assert "login failed: BASIC: invalid credentials" in caplog.text


async def test_metrics_need_describe_on_the_cluster(tmp_path: Path) -> None:
    given = {**BASIC, "authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS;User:alice"}
    async with serving(tmp_path, given) as broker:
        assert (await get(broker, authorization=basic("alice")))[0] == 200
        status, text = await get(broker, authorization=basic("bob"))
        assert (status, text.rpartition("\r\n")[2]) == (403, "/metrics needs DESCRIBE on the cluster\n")
        acl = {
            "resource_type": 4,
            "resource_name": "kafka-cluster",
            "pattern_type": 3,
            "principal": "User:bob",
            "host": "*",
            "operation": 8,
            "permission_type": 3,
        }
        async with kafka_client(broker.addresses.kafka) as client:
            reply = await client.ask("CreateAcls", creations=[acl])
            assert [each["error_code"] for each in reply["results"]] == [0], reply
        assert (await get(broker, authorization=basic("bob")))[0] == 200


async def test_many_wrong_passwords_delay_neither_health_nor_others(tmp_path: Path) -> None:
    async with serving(tmp_path, BASIC) as broker:
        statuses: list[int] = []

        async def attack() -> None:
            statuses.append((await get(broker, authorization=basic("alice", "wrong")))[0])

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(attack)
            with trio.fail_after(30):
                assert (await get(broker, "/healthz"))[0] == 200
                assert (await get(broker, authorization=basic("alice")))[0] == 200
        assert statuses == [401] * 50


async def test_a_token_reads_metrics(tmp_path: Path, issuer: Issuer) -> None:
    given = {**BASIC, **issuer.settings(), "warmlog.http.authentication": "basic,bearer"}
    async with serving(tmp_path, given) as broker:
        assert (await get(broker, authorization=f"Bearer {issuer.token()}"))[0] == 200
        assert (await get(broker, authorization=basic("alice")))[0] == 200
        status, text = await get(broker, authorization=f"Bearer {issuer.token(aud='another')}")
        assert status == 401
        assert 'www-authenticate: Bearer realm="warmlog"\r\n' in text
        assert (await get(broker, authorization="Bearer abc"))[0] == 401
        assert (await get(broker, authorization="Bearer"))[0] == 401
        issuer.rotate()
        assert (await get(broker, authorization=f"Bearer {issuer.token()}"))[0] == 401


def encrypted(tmp_path: Path, authority: Authority, **others: str) -> dict[str, str]:
    store = key_store(tmp_path / "http.pem", authority.issue("http"))
    return {
        "warmlog.http.security.protocol": "SSL",
        "listener.name.http.ssl.keystore.location": str(store),
        "connection.failed.authentication.delay.ms": "0",
        **{name.replace("_", "."): value for name, value in others.items()},
    }


async def test_http_is_encrypted(tmp_path: Path, authority: Authority) -> None:
    given = encrypted(tmp_path, authority, warmlog_http_authentication="basic")
    tls = ssl.create_default_context(cafile=authority.ca)
    async with serving(tmp_path, given) as broker:
        assert (await get(broker, "/healthz", tls=tls))[0] == 200
        status, text = await get(broker, authorization=basic("alice"), tls=tls)
        assert (status, 'warmlog_tls_certificate_expiry_seconds{listener="http"}' in text) == (200, True)
        assert (await get(broker, tls=tls))[0] == 401
        host, _, port = broker.addresses.http.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as plain:
            await plain.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            with pytest.raises(trio.BrokenResourceError):
                while await plain.receive_some():
                    pass
                raise trio.BrokenResourceError
        async with await trio.open_tcp_stream(host, int(port)) as silent:
            assert (await get(broker, "/readyz", tls=tls))[0] == 200
            assert silent is not None


async def test_handshakes_that_are_never_complete_keep_no_other_out(tmp_path: Path, authority: Authority) -> None:
    tls = ssl.create_default_context(cafile=authority.ca)
    async with serving(tmp_path, encrypted(tmp_path, authority)) as broker, AsyncExitStack() as stack:
        host, _, port = broker.addresses.http.rpartition(":")
        for _ in range(MAX_CONNECTIONS + 50):
            await stack.enter_async_context(await trio.open_tcp_stream(host, int(port)))
        with trio.fail_after(30):
            assert (await get(broker, "/readyz", tls=tls))[0] == 200


async def test_a_certificate_reads_metrics(tmp_path: Path, authority: Authority) -> None:
    given = encrypted(tmp_path, authority, warmlog_http_authentication="certificate", super_users="User:CN=alice",
                      authorizer_class_name=STANDARD_AUTHORIZER)  # fmt: skip
    given["super.users"] = "User:CN=alice;User:ANONYMOUS"
    given |= {
        "listener.name.http.ssl.client.auth": "requested",
        "listener.name.http.ssl.truststore.location": str(authority.ca),
    }

    def with_certificate(name: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=authority.ca)
        context.load_cert_chain(*authority.issue(name, subject=f"/CN={name}"))
        return context

    async with serving(tmp_path, given) as broker:
        without = ssl.create_default_context(cafile=authority.ca)
        assert (await get(broker, tls=with_certificate("alice")))[0] == 200
        assert (await get(broker, tls=with_certificate("bob")))[0] == 403
        status, text = await get(broker, tls=without)
        assert (status, text.rpartition("\r\n")[2]) == (401, "show a certificate\n")
        assert (await get(broker, "/healthz", tls=without))[0] == 200
        assert (await get(broker, authorization=basic("alice"), tls=without))[0] == 401


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"warmlog.http.authentication": "digest"}, "expected some of basic, bearer, certificate, not digest"),
        ({"warmlog.http.authentication": "basic"}, "basic would send secrets in clear"),
        ({"warmlog.http.authentication": "bearer"}, "bearer would send secrets in clear"),
        ({"warmlog.http.authentication": "certificate"}, "certificate needs warmlog.http.security.protocol=SSL"),
        (
            {"warmlog.http.authentication": "certificate", "warmlog.http.security.protocol": "SSL"},
            "needs ssl.client.auth=requested",
        ),
        (
            {"warmlog.http.authentication": "bearer", "warmlog.http.security.protocol": "SSL"},
            "jwks.endpoint.url: needed",
        ),
        ({"warmlog.http.security.protocol": "TLS"}, "expected one of"),
    ],
)
def test_settings_that_lack_something_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        load_settings(assignments=[f"{name}={value}" for name, value in given.items()])


async def test_sasl_is_nothing_that_http_has(tmp_path: Path) -> None:
    given = {"listener.name.http.sasl.enabled.mechanisms": "PLAIN"}
    with pytest.raises(ExceptionGroup) as group:
        async with running(tmp_path / "data", given, http="127.0.0.1:0"):
            raise AssertionError("started")
    assert "HTTP has no SASL: see warmlog.http.authentication" in str(first_of(group.value))
