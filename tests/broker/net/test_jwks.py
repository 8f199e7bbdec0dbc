"""Read an issuer's keys again: when they are due, when they are wanted, and after failures."""

import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.broker.cluster.certificates import Authority
from tests.issuer import Issuer, running_issuer
from warmlog.broker.net.http import jwks
from warmlog.broker.net.http.jwks import MAX_BYTES, KeyKeeper
from warmlog.broker.security.tokens import KeysError
from warmlog.broker.settings.oauth import JwksSettings

HOURLY = JwksSettings(url="", ca_file="", refresh_ms=3_600_000, retry_ms=100, retry_max_ms=10_000)


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@asynccontextmanager
async def kept(settings: JwksSettings) -> AsyncIterator[KeyKeeper]:
    keeper = KeyKeeper(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        yield keeper
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


async def attempts(keeper: KeyKeeper, result: str, count: int) -> None:
    """Wait for that many attempts, and until the keeper waits again."""
    await until(lambda: keeper.attempts[result] >= count)
    await trio.testing.wait_all_tasks_blocked()


async def test_keys_are_read_at_the_start_and_every_hour(issuer: Issuer, mock_clock: MockClock) -> None:
    async with kept(replace(HOURLY, url=f"{issuer.url}/jwks?a=b")) as keeper:
        await attempts(keeper, "ok", 1)
        assert list(keeper.ring.keys) == [("1", "EC")]
        issuer.rotate()
        mock_clock.jump(3599)
        await trio.testing.wait_all_tasks_blocked()
        assert issuer.reads == 1
        mock_clock.jump(1)
        await attempts(keeper, "ok", 2)
        assert list(keeper.ring.keys) == [("2", "EC")]


async def test_wanted_keys_are_read_once_in_ten_seconds(issuer: Issuer, mock_clock: MockClock) -> None:
    async with kept(replace(HOURLY, url=f"{issuer.url}/jwks")) as keeper:
        await attempts(keeper, "ok", 1)
        for number in range(1, 4):
            keeper.ring.wanted()
            keeper.ring.wanted()
            mock_clock.jump(9.9)
            await trio.testing.wait_all_tasks_blocked()
            assert issuer.reads == number
            mock_clock.jump(0.1)
            await attempts(keeper, "ok", number + 1)
        mock_clock.jump(100)
        await trio.testing.wait_all_tasks_blocked()
        assert issuer.reads == 4
        keeper.ring.wanted()
        await attempts(keeper, "ok", 5)


async def test_after_failures_the_pause_doubles_and_the_keys_stay(
    issuer: Issuer, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with kept(replace(HOURLY, url=f"{issuer.url}/jwks")) as keeper:
        await attempts(keeper, "ok", 1)
        issuer.answer = 500, b""
        mock_clock.jump(3600)
        pauses = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
        for count, pause in enumerate(pauses, start=1):
            await attempts(keeper, "failed", count)
            mock_clock.jump(pause * 0.99)
            await trio.testing.wait_all_tasks_blocked()
            assert keeper.attempts["failed"] == count
            if count == len(pauses):
                issuer.answer = None
            mock_clock.jump(pause * 0.011)
        assert list(keeper.ring.keys) == [("1", "EC")]
        await attempts(keeper, "ok", 2)
    assert [each.message.partition("/jwks")[2] for each in caplog.records] == [
        ", retrying with the last ones in use: status 500",
        " again",
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((302, b""), "status 302"),
        ((404, b""), "status 404"),
        ((200, b"{}"), "expected an array"),
        ((200, b"<html>"), "not a JSON object"),
        ((200, b" " * (MAX_BYTES + 1)), f"more than {MAX_BYTES} bytes"),
    ],
)
async def test_other_answers_are_failures(
    issuer: Issuer, answer: tuple[int, bytes], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.answer = answer
    async with kept(replace(HOURLY, url=f"{issuer.url}/jwks")) as keeper:
        await attempts(keeper, "failed", 1)
        assert not keeper.ring.keys
    assert why in caplog.text


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", b"SSH-2.0\r\n\r\n", b"a" * 40_000]
)
async def test_a_server_that_does_not_answer_is_a_failure(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(sent)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))  # type: ignore[var-annotated]
        port = listener.socket.getsockname()[1]
        async with kept(replace(HOURLY, url=f"http://127.0.0.1:{port}/")) as keeper:
            await attempts(keeper, "failed", 1)
        nursery.cancel_scope.cancel()
    assert "retrying with the last ones in use" in caplog.text


async def test_an_answer_has_ten_seconds(mock_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with trio.open_nursery() as nursery:
        begun = trio.Event()

        async def drip(stream: trio.SocketStream) -> None:
            await stream.send_all(b"HTTP/1.1 200 OK\r\n")
            begun.set()
            await trio.sleep_forever()

        (listener,) = await nursery.start(partial(trio.serve_tcp, drip, 0, host="127.0.0.1"))  # type: ignore[var-annotated]
        port = listener.socket.getsockname()[1]
        async with kept(replace(HOURLY, url=f"http://127.0.0.1:{port}/")) as keeper:
            await begun.wait()
            mock_clock.jump(jwks.ATTEMPT_S)
            await attempts(keeper, "failed", 1)
        nursery.cancel_scope.cancel()
    assert "no answer within 10 s" in caplog.text


async def test_nothing_listens_there(unused_port: int, caplog: pytest.LogCaptureFixture) -> None:
    async with kept(replace(HOURLY, url=f"http://127.0.0.1:{unused_port}/jwks")) as keeper:
        await attempts(keeper, "failed", 1)
    assert f"http://127.0.0.1:{unused_port}/jwks, retrying with the last ones in use: " in caplog.text
    assert "Connection refused" in caplog.text


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_a_file_is_read_again_when_a_key_is_wanted(tmp_path: Path, issuer: Issuer, mock_clock: MockClock) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(issuer.jwks)
    async with kept(replace(HOURLY, url=f"file:{path}")) as keeper:
        assert list(keeper.ring.keys) == [("1", "EC")]
        issuer.rotate()
        path.write_bytes(issuer.jwks)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(10)
        keeper.ring.wanted()
        await attempts(keeper, "ok", 1)
        assert list(keeper.ring.keys) == [("2", "EC")]


def test_keys_that_are_left_out_are_logged(tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [*json.loads(issuer.jwks)["keys"], {"kty": "oct", "k": "c2VjcmV0"}]}))
    KeyKeeper(replace(HOURLY, url=f"file:{path}"))
    assert "ignored a key of tokens" in caplog.text
    assert "key 1: not a public key of type RSA, EC or OKP" in caplog.text
    assert "c2VjcmV0" not in caplog.text


async def test_an_https_address_is_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path / "ca")
    issued = authority.issue("issuer")
    store = tmp_path / "issuer.pem"
    store.write_text(issued.key.read_text() + issued.certificate.read_text())
    with running_issuer(store) as issuer:
        settings = replace(HOURLY, url=f"{issuer.url}/jwks", ca_file=str(authority.ca))
        async with kept(settings) as keeper:
            await attempts(keeper, "ok", 1)
        async with kept(replace(settings, ca_file="")) as keeper:
            await attempts(keeper, "failed", 1)
    assert "its certificate is not valid" in caplog.text
    with pytest.raises(KeysError, match="No such file"):
        KeyKeeper(replace(settings, ca_file=str(tmp_path / "none")))
