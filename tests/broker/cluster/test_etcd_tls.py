"""TLS to etcd: who trusts whom, and certificates that are renewed while the client runs."""

import os
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.broker.cluster.certificates import Authority, Issued, openssl
from tests.broker.cluster.conftest import open_store, use_every_call
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from warmlog.broker.cluster.etcd.endpoints import Timeouts
from warmlog.broker.cluster.etcd.etcd_store import EtcdStore
from warmlog.broker.cluster.store import KeyValue, Put, StoreRefusedError, StoreTransaction, StoreUnavailableError
from warmlog.broker.security.client_tls import ClientTls, TlsFileError, TlsFiles

ONE_WRITE = StoreTransaction((), (Put("a", b"1"),))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority, which etcd does not trust."""
    return Authority(tmp_path_factory.mktemp("certificates") / "stranger")


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("client")


def serving(issued: Issued) -> tuple[str | Path, ...]:
    """Return etcd's options for TLS with a certificate."""
    return ("--cert-file", issued.certificate, "--key-file", issued.key)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[EtcdProcess]:
    """An etcd that demands certificates of its clients."""
    options = (*serving(authority.issue("server")), "--client-cert-auth", "--trusted-ca-file", authority.ca)
    with etcd(tmp_path_factory.mktemp("etcd"), options=options, scheme="https") as (member,):
        yield member


def tls(authority: Authority, issued: Issued | None = None) -> ClientTls:
    if issued is None:
        return ClientTls(TlsFiles(prefix="warmlog.cluster.etcd", ca=str(authority.ca)))
    return ClientTls(
        TlsFiles(
            prefix="warmlog.cluster.etcd",
            ca=str(authority.ca),
            certificate=str(issued.certificate),
            key=str(issued.key),
        )
    )


async def refusal(store: EtcdStore) -> str:
    """Return why a store refuses calls, or is refused."""
    while True:
        try:
            await store.range()
        except StoreRefusedError as error:
            return str(error)
        except StoreUnavailableError:  # a request that was sent before the alert came may be answered with a reset
            await trio.lowlevel.checkpoint()
        else:
            raise AssertionError


# -- calls --


async def test_calls_and_watches_work_with_certificates_of_both_sides(
    secured: EtcdProcess, authority: Authority, issued: Issued
) -> None:
    async with open_store(secured.url, "c", tls=tls(authority, issued)) as store:
        await use_every_call(store)


async def test_a_range_that_is_longer_than_a_tls_record_is_read_whole(
    secured: EtcdProcess, authority: Authority, issued: Issued
) -> None:
    value = os.urandom(300_000)
    async with open_store(secured.url, "long", tls=tls(authority, issued)) as store:
        await store.commit(StoreTransaction((), (Put("long", value),)))
        assert [item.value for item in (await store.range()).items] == [value]


async def test_a_cancelled_wait_for_changes_loses_none(
    secured: EtcdProcess, authority: Authority, issued: Issued
) -> None:
    quick = Timeouts(quiet_s=0.001)  # so often a wait for the next line is cancelled
    async with open_store(secured.url, "cancelled", tls=tls(authority, issued), timeouts=quick) as store:
        begin = (await store.range()).revision
        async with store.watch(begin) as watch:
            last = [(await store.commit(ONE_WRITE)).revision for _ in range(50)][-1]
            seen: list[int] = []
            while not seen or seen[-1] < last:
                changes = await anext(watch)
                seen += [event.mod_revision for event in changes.events if isinstance(event, KeyValue)]
    assert seen == sorted(set(seen))
    assert len(seen) == 50


# -- trust --


async def test_an_etcd_with_a_certificate_of_an_unknown_ca_is_not_trusted(
    secured: EtcdProcess, stranger: Authority, issued: Issued
) -> None:
    async with open_store(secured.url, "c", tls=tls(stranger, issued)) as store:
        why = await refusal(store)
    assert why.startswith(f"{secured.url}: its certificate is not valid: ")
    assert why.endswith("; is its CA in warmlog.cluster.etcd.ca.file?")


@pytest.mark.parametrize(("host", "is_expired"), [("127.0.0.1", True), ("127.0.0.2", False)], ids=["expired", "host"])
async def test_an_etcd_with_a_certificate_that_does_not_hold_is_not_trusted(
    host: str, is_expired: bool, authority: Authority, tmp_path: Path
) -> None:
    options = serving(authority.issue(f"bad-{host}", host=host, expired=is_expired))
    with etcd(tmp_path, options=options, scheme="https") as (member,):
        async with open_store(member.url, "c", tls=tls(authority)) as store:
            why = await refusal(store)
    expected = (
        "certificate has expired" if is_expired else "IP address mismatch, certificate is not valid for '127.0.0.1'."
    )
    assert why == f"{member.url}: its certificate is not valid: {expected}"


async def test_an_etcd_that_demands_a_certificate_refuses_a_client_without_one(
    secured: EtcdProcess, authority: Authority
) -> None:
    async with open_store(secured.url, "c", tls=tls(authority)) as store:
        why = await refusal(store)
    assert why.startswith(f"{secured.url}: it refuses the TLS connection: ")
    assert why.endswith("; see warmlog.cluster.etcd.certificate.file")


async def test_an_etcd_refuses_a_certificate_of_another_ca(
    secured: EtcdProcess, authority: Authority, stranger: Authority
) -> None:
    async with open_store(secured.url, "c", tls=tls(authority, stranger.issue("client"))) as store:
        assert "it refuses the TLS connection: " in await refusal(store)


async def why_no_tls(url: str, authority: Authority) -> str:
    async with open_store(url, "c", tls=tls(authority)) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.range()
    return str(caught.value)


NO_TLS = "cannot connect: it closed the connection during the TLS handshake: does it use TLS?"


async def test_an_etcd_that_does_not_use_tls_is_named(session_etcd: EtcdProcess, authority: Authority) -> None:
    url = session_etcd.url.replace("http:", "https:")
    assert await why_no_tls(url, authority) == f"{url}: {NO_TLS}"


@pytest.mark.parametrize("is_reset", [False, True], ids=["end", "reset"])
async def test_a_peer_that_closes_during_the_handshake_is_named(
    is_reset: bool, authority: Authority, nursery: trio.Nursery
) -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.receive_some(1 if is_reset else None)  # a close that leaves data unread is a reset
        await stream.aclose()

    (listener,) = await nursery.start(partial(trio.serve_tcp, close, 0, host="127.0.0.1"))
    url = f"https://127.0.0.1:{listener.socket.getsockname()[1]}"
    assert await why_no_tls(url, authority) == f"{url}: {NO_TLS}"


# -- files that are replaced --


async def test_new_connections_use_a_renewed_certificate(
    secured: EtcdProcess, authority: Authority, tmp_path: Path
) -> None:
    used = Issued(tmp_path / "used.pem", tmp_path / "used.key")

    def install(issued: Issued) -> None:
        for source, target in zip(issued, used, strict=True):
            (tmp_path / "new").write_bytes(source.read_bytes())
            os.replace(tmp_path / "new", target)

    install(authority.issue("old", expired=True))
    async with open_store(secured.url, "c", tls=tls(authority, used)) as store:
        assert "it refuses the TLS connection: " in await refusal(store)
        install(authority.issue("renewed"))
        await store.range()


async def test_files_that_are_being_replaced_do_not_matter_until_they_are_complete(
    authority: Authority, issued: Issued, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used = Issued(tmp_path / "used.pem", tmp_path / "used.key")
    used.certificate.write_bytes(issued.certificate.read_bytes())
    used.key.write_bytes(issued.key.read_bytes())
    client = tls(authority, used)
    first = await client.context()
    used.certificate.unlink()
    assert await client.context() is first
    renewed = authority.issue("pair")
    used.certificate.write_bytes(renewed.certificate.read_bytes())
    assert await client.context() is first
    assert await client.context() is first
    assert caplog.text.count(f"{used.key} does not belong to {used.certificate}") == 1
    used.key.write_bytes(renewed.key.read_bytes())
    assert await client.context() is not first


# -- files that cannot be used --


@pytest.mark.parametrize("setting", ["ca", "certificate", "key"])
@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file or directory"), (b"", "in PEM format"), (b"\x30\x82\x01\x0a", "in PEM format")],
    ids=["missing", "empty", "not PEM"],
)
def test_a_file_that_cannot_be_used_is_named_with_its_setting(
    setting: str, content: bytes | None, why: str, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    if content is not None:
        bad.write_bytes(content)
    files = {"ca": authority.ca, "certificate": issued.certificate, "key": issued.key} | {setting: bad}
    with pytest.raises(TlsFileError) as caught:
        ClientTls(TlsFiles(prefix="warmlog.cluster.etcd", **{name: str(path) for name, path in files.items()}))
    assert str(caught.value).startswith(f"warmlog.cluster.etcd.{setting}.file: {bad}")
    assert str(caught.value).endswith(why)
    assert "\n" not in str(caught.value)


def test_a_key_of_another_certificate_is_refused(authority: Authority, issued: Issued) -> None:
    other = authority.issue("other")
    with pytest.raises(TlsFileError) as caught:
        tls(authority, Issued(issued.certificate, other.key))
    assert str(caught.value) == f"warmlog.cluster.etcd.key.file: {other.key} does not belong to {issued.certificate}"


def test_an_encrypted_key_is_refused(authority: Authority, issued: Issued, tmp_path: Path) -> None:
    key = tmp_path / "encrypted.key"
    openssl("pkey", "-in", issued.key, "-aes256", "-passout", "pass:secret", "-out", key)
    with pytest.raises(TlsFileError) as caught:
        tls(authority, Issued(issued.certificate, key))
    assert str(caught.value) == f"warmlog.cluster.etcd.key.file: {key} is encrypted: give a key without a password"


async def test_the_cas_of_the_system_are_trusted_by_default() -> None:
    context = await ClientTls(TlsFiles(prefix="warmlog.cluster.etcd")).context()
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
