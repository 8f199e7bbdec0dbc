"""Users of etcd: passwords, tokens that become invalid, permissions."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from tests.broker.cluster.certificates import Authority, Issued
from tests.broker.cluster.conftest import PROMPT, open_store, use_every_call
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from tests.broker.cluster.etcd_users import PASSWORD, QUICK_HASHES, USER, Users
from warmlog.broker.cluster.etcd.account import Account, EtcdPasswordFileError
from warmlog.broker.cluster.etcd.endpoints import parse_endpoints
from warmlog.broker.cluster.etcd.gateway import AuthenticateRequest
from warmlog.broker.cluster.store import Put, Store, StoreRefusedError, StoreTransaction, StoreUnavailableError
from warmlog.broker.security.client_tls import ClientTls, TlsFiles

ONE_WRITE = StoreTransaction((), (Put("a", b"1"),))


@pytest.fixture
def member(tmp_path: Path) -> Iterator[EtcdProcess]:
    with etcd(tmp_path / "etcd", options=QUICK_HASHES) as (member,):
        yield member


@pytest.fixture
def users(member: EtcdProcess) -> Users:
    """The users of an etcd that does not demand them yet."""
    users = Users(member)
    users.add()
    return users


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    return path


@pytest.fixture
def account(password_file: Path) -> Account:
    return Account(USER, str(password_file))


async def commit_soon(store: Store) -> None:
    """Commit until a transaction is known to be committed."""
    while True:
        try:
            await store.commit(ONE_WRITE)
        except StoreRefusedError:
            raise
        except StoreUnavailableError:
            await trio.lowlevel.checkpoint()
        else:
            return


# -- tokens --


async def test_calls_and_watches_work_as_a_user(member: EtcdProcess, users: Users, account: Account) -> None:
    users.enable()
    async with open_store(member.url, "c", account=account) as store:
        await use_every_call(store)


async def test_a_transaction_refused_for_its_token_is_committed_once(
    member: EtcdProcess, users: Users, account: Account
) -> None:
    users.enable()
    async with open_store(member.url, "c", account=account) as store:
        before = (await store.commit(ONE_WRITE)).revision
        (endpoint,) = parse_endpoints(member.url)
        account.session(endpoint).token = "expired.1"
        outcome = await store.commit(ONE_WRITE)
        assert outcome.succeeded
        assert outcome.revision == before + 1


class CountingAccount(Account):
    """An account that counts its requests for tokens."""

    requests = 0

    async def request(self) -> AuthenticateRequest:
        self.requests += 1
        return await super().request()


async def test_calls_at_the_same_time_ask_for_one_token(member: EtcdProcess, users: Users, password_file: Path) -> None:
    users.enable()
    account = CountingAccount(USER, str(password_file))
    (endpoint,) = parse_endpoints(member.url)
    async with open_store(member.url, "c", account=account) as store:
        for expected in (1, 2):
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(store.range)
            assert account.requests == expected
            account.session(endpoint).token = "expired.1"


async def test_tokens_that_a_restart_of_etcd_has_ended_are_replaced(
    member: EtcdProcess, users: Users, account: Account
) -> None:
    users.enable()
    async with open_store(member.url, "c", account=account) as store:
        begin = (await store.commit(ONE_WRITE)).revision
        async with store.watch(begin) as watch:
            await store.commit(ONE_WRITE)
            await anext(watch)
            member.kill()
            member.start()
            last = (await store.commit(ONE_WRITE)).revision
            seen = 0
            while seen < last:
                seen = (await anext(watch)).revision


async def test_each_member_gives_a_token_of_its_own(tmp_path: Path, account: Account) -> None:
    with etcd(tmp_path / "three", members=3, options=QUICK_HASHES) as members:
        users = Users(members[0])
        users.add()
        users.enable()
        urls = ",".join(member.url for member in members)
        async with open_store(urls, "c", account=account, timeouts=PROMPT) as store:
            for member in members:
                await commit_soon(store)
                member.kill()
                await commit_soon(store)
                member.start()


# -- passwords --


@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
async def test_a_wrong_password_or_user_is_refused_without_showing_the_password(
    user: str, password: str, member: EtcdProcess, users: Users, password_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users.enable()
    password_file.write_text(password)
    async with open_store(member.url, "c", account=Account(user, str(password_file))) as store:
        with pytest.raises(StoreRefusedError) as caught:
            await store.range()
    assert str(caught.value) == (
        f"{member.url}: etcdserver: authentication failed, invalid user ID or password (user {user})"
    )
    assert password not in caplog.text


async def test_a_password_that_was_changed_is_read_again(
    member: EtcdProcess, users: Users, account: Account, password_file: Path
) -> None:
    users.enable()
    async with open_store(member.url, "c", account=account) as store:
        await store.commit(ONE_WRITE)
        users.change_password("battery-staple")
        with pytest.raises(StoreRefusedError, match="invalid user ID or password"):
            await store.commit(ONE_WRITE)
        password_file.unlink()
        with pytest.raises(StoreRefusedError, match=r"warmlog\.cluster\.etcd\.password\.file: .*: No such file"):
            await store.commit(ONE_WRITE)
        password_file.write_text("battery-staple")
        await store.commit(ONE_WRITE)


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, ": No such file or directory"), (b"\n", " is empty"), (b"\xff\xfe", " is not text in UTF-8")],
    ids=["missing", "empty", "not text"],
)
def test_a_password_file_that_cannot_be_used_is_named(content: bytes | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EtcdPasswordFileError) as caught:
        Account(USER, str(path))
    assert str(caught.value) == f"warmlog.cluster.etcd.password.file: {path}{why}"


# -- who may do what --


async def test_an_etcd_that_demands_a_user_says_so(member: EtcdProcess, users: Users) -> None:
    users.enable()
    async with open_store(member.url, "c") as store:
        with pytest.raises(StoreRefusedError) as caught:
            await store.range()
    assert str(caught.value) == f"{member.url}: etcdserver: user name is empty: set warmlog.cluster.etcd.user"


async def test_a_missing_permission_is_explained_and_can_be_granted(
    member: EtcdProcess, users: Users, account: Account
) -> None:
    async with open_store(member.url, "c") as store:
        await store.range()
    users.grant("read")
    users.enable()
    async with open_store(member.url, "c", account=account) as store:
        await store.range()
        with pytest.raises(StoreRefusedError) as caught:
            await store.commit(ONE_WRITE)
        assert str(caught.value) == (
            f"{member.url}: etcdserver: permission denied (user {USER}): "
            "the user's role needs readwrite permission for the cluster's keys"
        )
        users.grant("readwrite")
        await store.commit(ONE_WRITE)


async def test_users_may_be_demanded_from_now_on_and_not_any_more(
    member: EtcdProcess, users: Users, account: Account
) -> None:
    async with open_store(member.url, "c", account=account) as store:
        await store.commit(ONE_WRITE)
        users.enable()
        await store.commit(ONE_WRITE)
        users.disable()
        await store.commit(ONE_WRITE)
        users.enable()
        await store.commit(ONE_WRITE)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "warmlog.broker.cluster.etcd.client"]


async def test_a_refusal_is_logged_once_although_leases_are_kept(
    member: EtcdProcess, users: Users, account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    users.enable()
    async with open_store(member.url, "c", account=account) as store:
        lease = await store.grant(60)
        users.grant("read")
        for _ in range(2):
            with pytest.raises(StoreRefusedError):
                await store.commit(ONE_WRITE)
            await store.keep_alive(lease)
            await store.range()
        refused = f"cluster store: {member.url}: etcdserver: permission denied"
        assert [line.startswith(refused) for line in logged(caplog)] == [True]
        users.grant("readwrite")
        await store.commit(ONE_WRITE)
        assert logged(caplog)[1:] == [f"cluster store: {member.url} answers again"]


async def test_a_refusal_is_logged_after_another_failure(
    member: EtcdProcess, users: Users, account: Account, password_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users.enable()
    async with open_store(member.url, "c", account=account) as store:
        await store.commit(ONE_WRITE)
        member.kill()
        with pytest.raises(StoreUnavailableError):
            await store.commit(ONE_WRITE)
        member.start()
        password_file.unlink()
        (endpoint,) = parse_endpoints(member.url)
        account.session(endpoint).token = "expired.1"
        with pytest.raises(StoreRefusedError):
            await store.commit(ONE_WRITE)
    first, second = logged(caplog)
    assert "cannot connect" in first or "connection lost" in first
    assert "warmlog.cluster.etcd.password.file" in second


# -- certificates are no users --


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def certified(tmp_path: Path, authority: Authority) -> Iterator[EtcdProcess]:
    """An etcd that demands users and certificates. Its own certificate bears a user's name."""
    server = authority.issue("server", subject=f"/CN={USER}")
    tls = ("--cert-file", server.certificate, "--key-file", server.key, "--trusted-ca-file", authority.ca)
    with etcd(tmp_path / "certified", options=(*QUICK_HASHES, *tls, "--client-cert-auth"), scheme="https") as (member,):
        admin = authority.issue("admin")
        users = Users(member, ("--cacert", authority.ca, "--cert", admin.certificate, "--key", admin.key))
        users.add()
        users.enable()
        yield member


def tls(authority: Authority, issued: Issued) -> ClientTls:
    return ClientTls(
        TlsFiles(
            prefix="warmlog.cluster.etcd",
            ca=str(authority.ca),
            certificate=str(issued.certificate),
            key=str(issued.key),
        )
    )


async def test_a_user_works_with_a_client_certificate(
    certified: EtcdProcess, authority: Authority, account: Account
) -> None:
    async with open_store(certified.url, "c", tls=tls(authority, authority.issue("client")), account=account) as store:
        await store.commit(ONE_WRITE)


async def test_a_client_without_a_user_is_not_taken_for_the_one_in_the_certificate_of_etcd(
    certified: EtcdProcess, authority: Authority
) -> None:
    async with open_store(certified.url, uuid4().hex, tls=tls(authority, authority.issue("client"))) as store:
        with pytest.raises(StoreRefusedError, match=r"user name is empty: set warmlog\.cluster\.etcd\.user"):
            await store.range()


async def test_a_client_certificate_with_a_common_name_is_refused(
    certified: EtcdProcess, authority: Authority, account: Account
) -> None:
    named = authority.issue("named", subject=f"/CN={USER}")
    async with open_store(certified.url, "c", tls=tls(authority, named), account=account) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.range()
    assert isinstance(caught.value, StoreRefusedError)
    assert "it refuses certificates with a common name: see warmlog.cluster.etcd.certificate.file" in str(caught.value)
