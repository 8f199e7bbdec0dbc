"""How many names that the broker remembers a connection and an address may introduce."""

import logging
from contextlib import suppress

import pytest

from warmlog.broker.api.context import Session
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.newcomers import MAX_ADDRESSES, Newcomers
from warmlog.protocol.errors import ErrorCode


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def session(address: str = "10.0.0.1") -> Session:
    return Session(listener="kafka", peer=(address, 40_000), local=("10.0.0.9", 9092))


def newcomers(clock: Clock | None = None, *, limit: int = 800, of_connection: int = 10) -> Newcomers:
    return Newcomers(
        "producers", "warmlog.x.max", limit=limit, of_connection=of_connection, window_s=100.0, clock=clock or Clock()
    )


def admitted(found: Newcomers, names: range, *sessions: Session) -> int:
    """Introduce names, each by one of the sessions in turn; return how many are admitted."""
    count = 0
    for at, name in enumerate(names):
        with suppress(RequestError):
            found.admit(sessions[at % len(sessions)], name)
            count += 1
    return count


def test_a_connection_introduces_some_and_may_repeat_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    found, mine = newcomers(), session()
    assert admitted(found, range(50), mine) == 10
    assert admitted(found, range(10), mine) == 10
    assert found.refused == 40
    with pytest.raises(RequestError, match=r"no more new producers.*\(warmlog.connection.names.max\)") as refused:
        found.admit(mine, 99)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    (line,) = caplog.messages
    assert line.startswith("refused new producers of 10.0.0.1:40000: the connection has introduced 10 names")


def test_the_connections_of_an_address_introduce_a_quarter_of_the_limit_and_others_are_not_affected() -> None:
    found = newcomers()
    assert admitted(found, range(2000), *[session() for _ in range(200)]) == 200
    assert admitted(found, range(10), session("10.0.0.2")) == 10


def test_the_count_of_an_address_ends_with_the_time_for_which_names_are_kept() -> None:
    clock = Clock()
    found = newcomers(clock, of_connection=1000)
    assert admitted(found, range(300), session()) == 200
    clock.now += 99.0
    assert admitted(found, range(300, 400), session()) == 0
    clock.now += 51.0  # half of the window before still counts
    assert admitted(found, range(400, 600), session()) == 100
    clock.now += 1000.0
    assert admitted(found, range(600, 900), session()) == 200


def test_addresses_are_forgotten() -> None:
    found = newcomers()
    for number in range(MAX_ADDRESSES + 10):
        found.admit(session(str(number)), 1)
    assert len(found._addresses) == MAX_ADDRESSES
