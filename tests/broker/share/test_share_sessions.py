from dataclasses import dataclass

import pytest

from warmlog.broker.share import sessions
from warmlog.broker.share.sessions import RETRIED, ShareSession, ShareSessionError, ShareSessions
from warmlog.protocol.errors import ErrorCode


@dataclass(frozen=True)
class Client:
    """A connection, of which a holder may have several."""

    holder: str
    number: int = 0


def key(number: int) -> tuple[bytes, int]:
    return b"topic".ljust(16), number


@pytest.fixture
def ended() -> list[ShareSession]:
    return []


@pytest.fixture
def four(ended: list[ShareSession]) -> ShareSessions:
    """At most four sessions."""
    return ShareSessions(4, ended.append)


def test_a_holder_with_many_sessions_makes_way_for_others(four: ShareSessions, ended: list[ShareSession]) -> None:
    made = [four.create("g", f"m{number}", Client("greedy", number)) for number in range(4)]
    four.find("g", "m0", made[0].epoch)
    modest = four.create("g", "modest", Client("modest"))
    assert ended == [made[1]]  # not used for longest
    four.create("g", "other", Client("other"))
    assert ended == made[1:3]
    assert four.get("g", "modest") is modest
    assert four.gave_way == 2


def test_a_holder_with_as_many_as_the_others_is_refused(four: ShareSessions, ended: list[ShareSession]) -> None:
    for number in range(4):
        four.create("g", f"m{number}", Client("one" if number % 2 else "two", number))
    for holder in ("one", "two"):
        with pytest.raises(ShareSessionError) as refused:
            four.create("g", "more", Client(holder))
        assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert ended == []


def test_partitions_make_way_as_well(
    four: ShareSessions, ended: list[ShareSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_PARTITIONS", 10)
    greedy = four.create("g", "greedy", Client("greedy"))
    four.update(greedy, map(key, range(9)), ())
    modest = four.create("g", "modest", Client("modest"))
    four.update(modest, map(key, range(4)), ())
    assert (ended, four.partition_count) == ([greedy], 4)
    with pytest.raises(ShareSessionError):
        four.update(modest, map(key, range(11)), ())
    assert (ended, four.partition_count) == ([greedy, modest], 0)


def test_few_of_many_failing_partitions_are_tried_again(four: ShareSessions) -> None:
    session = four.create("g", "m", Client("one"))
    four.update(session, map(key, range(1000)), ())
    for number in range(1000):
        session.failed(key(number))
    seen: list[int] = []
    for _ in range(10):
        session.retry()
        tried = [number for _, number in session.partitions]
        assert len(tried) == RETRIED
        seen += tried
        for number in tried:
            session.failed(key(number))
    assert seen == list(range(1000))
    four.update(session, [key(5)], [key(6)])
    assert (list(session.partitions), session.size, four.partition_count) == ([key(5)], 999, 999)
    four.close(session)
    assert four.partition_count == 0
