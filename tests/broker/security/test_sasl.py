"""The states of a login, without a connection."""

import pytest

from warmlog.broker.security.sasl import (
    IllegalStateError,
    Login,
    LoginRules,
    NotNowError,
    Stage,
    UnsupportedMechanismError,
    Users,
)
from warmlog.broker.security.scram import ScramCredential, ScramServer, UnknownUsers
from warmlog.protocol.scram import SCRAM_SHA_256, SaslError, ScramClient


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def credential() -> ScramCredential:
    return ScramCredential.of_salted(
        SCRAM_SHA_256, SCRAM_SHA_256.salted_password("secret", b"salt", 4096), b"salt", 4096
    )


STORED = {("alice", "SCRAM-SHA-256"): credential(), ("bob", "SCRAM-SHA-256"): credential()}
USERS = Users(lambda user, mechanism: STORED.get((user, mechanism)), UnknownUsers(lambda: b"secret"))


def new_login(clock: Clock, session_s: float = 0.0) -> Login:
    return Login(
        LoginRules(
            mechanisms=("SCRAM-SHA-256", "SCRAM-SHA-512"),
            is_encrypted=False,
            max_frame_bytes=1024,
            timeout_s=10,
            failure_delay_s=0.1,
            session_s=session_s,
            clock=clock,
        )
    )


def authenticate(login: Login, user: str = "alice", password: str = "secret") -> None:
    client = ScramClient(SCRAM_SHA_256, user, password, "abc")
    exchange = login.exchange
    assert isinstance(exchange, ScramServer)
    challenge = exchange.respond(client.first())
    login.advanced()
    assert not login.is_complete
    exchange.respond(client.final(challenge))
    login.advanced()


def test_a_login_has_a_principal_once_it_is_complete() -> None:
    clock = Clock()
    login = new_login(clock)
    assert (login.max_frame_bytes, login.overdue(110), login.overdue(110.1)) == (1024, False, True)
    login.choose("SCRAM-SHA-256", USERS)
    assert login.principal is None
    authenticate(login)
    assert (str(login.principal), login.stage, login.max_frame_bytes) == ("User:alice", Stage.COMPLETE, None)
    assert not login.overdue(1e9)
    assert not login.has_expired()


@pytest.mark.parametrize("mechanism", ["PLAIN", "GSSAPI", "", "scram-sha-256"])
def test_a_mechanism_that_is_not_enabled_ends_the_login(mechanism: str) -> None:
    login = new_login(Clock())
    with pytest.raises(UnsupportedMechanismError, match="SCRAM-SHA-256, SCRAM-SHA-512"):
        login.choose(mechanism, USERS)
    assert login.has_failed


def test_messages_out_of_order_end_the_login() -> None:
    login = new_login(Clock())
    with pytest.raises(IllegalStateError):
        _ = login.exchange
    assert login.has_failed
    with pytest.raises(IllegalStateError):  # for good
        login.choose("SCRAM-SHA-256", USERS)
    login = new_login(Clock())
    login.choose("SCRAM-SHA-256", USERS)
    with pytest.raises(IllegalStateError):
        login.choose("SCRAM-SHA-256", USERS)
    clock = Clock()
    login = new_login(clock, session_s=60)
    login.choose("SCRAM-SHA-256", USERS)
    authenticate(login)
    with pytest.raises(NotNowError):
        _ = login.exchange
    assert login.is_complete
    clock.now += 61
    with pytest.raises(IllegalStateError):
        _ = login.exchange
    assert login.has_failed


def test_a_client_authenticates_again_as_the_same_user_with_the_same_mechanism() -> None:
    clock = Clock()
    login = new_login(clock, session_s=60)
    login.choose("SCRAM-SHA-256", USERS)
    authenticate(login)
    clock.now += 61
    assert login.has_expired()
    login.choose("SCRAM-SHA-256", USERS)
    assert not login.is_complete
    authenticate(login)
    assert not login.has_expired()
    clock.now += 1
    login.choose("SCRAM-SHA-256", USERS)
    with pytest.raises(SaslError, match="principal"):
        authenticate(login, "bob")
    assert (login.has_failed, str(login.principal)) == (True, "User:alice")


def test_a_client_does_not_change_its_mechanism() -> None:
    login = new_login(Clock(), session_s=60)
    login.choose("SCRAM-SHA-256", USERS)
    authenticate(login)
    with pytest.raises(IllegalStateError, match="mechanism"):
        login.choose("SCRAM-SHA-512", USERS)
    assert login.has_failed


@pytest.mark.parametrize(("session_s", "has_expired"), [(60, False), (0.5, True)])
def test_a_client_may_renew_a_login_at_once_but_not_all_the_time(session_s: float, has_expired: bool) -> None:
    clock = Clock()
    login = new_login(clock, session_s=session_s)
    for _ in range(2):
        login.choose("SCRAM-SHA-256", USERS)
        authenticate(login)
    clock.now += 0.9
    with pytest.raises(IllegalStateError, match="less than a second"):
        login.choose("SCRAM-SHA-256", USERS)
    assert login.has_failed is has_expired
    if not has_expired:
        clock.now += 0.1
        login.choose("SCRAM-SHA-256", USERS)
        authenticate(login)


def test_a_login_that_does_not_expire_is_not_renewed() -> None:
    clock = Clock()
    login = new_login(clock)
    login.choose("SCRAM-SHA-256", USERS)
    authenticate(login)
    clock.now += 100
    with pytest.raises(NotNowError, match="does not expire"):
        login.choose("SCRAM-SHA-256", USERS)
    assert login.is_complete
