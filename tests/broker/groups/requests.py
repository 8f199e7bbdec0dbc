"""Helpers for tests of groups: requests with defaults, and a driver with a manual clock around one group."""

import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from warmlog.broker.groups.automaton import Answer, Client, Instant
from warmlog.broker.groups.classic.effects import Limits, Store
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    GroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000


def subscription(*topics: str) -> bytes:
    """Return a member's metadata in version 0 of Kafka's consumer protocol, with null user data."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def protocols(*names: str, topics: Sequence[str] = ("orders",)) -> tuple[GroupProtocol, ...]:
    return tuple(GroupProtocol(name=name, metadata=subscription(*topics)) for name in names)


def join_request(member_id: str = "", *, speaks: Iterable[str] = ("range",), **fields: Any) -> JoinGroupRequest:
    given: dict[str, Any] = {
        "group": "g",
        "protocol_type": "consumer",
        "protocols": protocols(*speaks),
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "requires_known_member": False,
    }
    return JoinGroupRequest(member_id=member_id, **{**given, **fields})


class Driver:
    """A group with its clock and its answers. Waiters are numbers."""

    def __init__(self, *, max_size: int = 100, delay_ms: int = DELAY_MS) -> None:
        self.now = Instant(1000.0, 1_700_000_000_000)
        self.group = ClassicGroup("g", Limits(max_size=max_size, initial_rebalance_delay_ms=delay_ms), self.now)
        self.answers: dict[int, JoinGroupResponse | SyncGroupResponse] = {}
        self.stores: list[Store] = []
        self.must_store = True  # immediately; otherwise `stores` collects the effects
        self._waiters = itertools.count()
        self._ids = itertools.count()

    def join(self, member_id: str = "", *, client_id: str = "c", **fields: Any) -> int:
        waiter = next(self._waiters)
        client = Client(client_id=client_id, host="/127.0.0.1", holder="127.0.0.1", new_id=str(next(self._ids)))
        self.group.join(join_request(member_id, **fields), client, waiter, self.now)
        self.pump()
        return waiter

    def sync(
        self, member_id: str, generation: int | None = None, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> int:
        waiter = next(self._waiters)
        request = SyncGroupRequest(
            group="g",
            member_id=member_id,
            generation=self.group.generation.number if generation is None else generation,
            assignments=tuple(
                MemberAssignment(member_id=key, assignment=value) for key, value in (assignments or {}).items()
            ),
            **fields,
        )
        self.group.sync(request, waiter, self.now)
        self.pump()
        return waiter

    def leave(self, *member_ids: str, instance_id: str | None = None) -> list[ErrorCode]:
        members = [LeavingMember(member_id=member_id, instance_id=instance_id) for member_id in member_ids]
        errors = self.group.leave(members, self.now)
        self.pump()
        return errors

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
        number = self.group.generation.number if generation is None else generation
        return self.group.heartbeat(member_id, instance_id, number, self.now)

    def pass_ms(self, milliseconds: int) -> None:
        """Advance the clock, and expire the group whenever it is due on the way."""
        end = self.now.loop_s + milliseconds / 1000
        while self.group.wake_at_s <= end:
            self._at(max(self.group.wake_at_s, self.now.loop_s))
            self.group.expire(self.now)
            self.pump()
        self._at(end)

    def pump(self) -> None:
        for effect in self.group.take_effects():
            if isinstance(effect, Answer):
                assert effect.waiter not in self.answers, "no request is answered twice"
                self.answers[effect.waiter] = effect.response  # type: ignore[index]
            else:
                self.stores.append(effect)
        if self.must_store:
            self.settle_stores()

    def settle_stores(self, error: ErrorCode = ErrorCode.NONE) -> None:
        stores, self.stores = self.stores, []
        for store in stores:
            self.group.stored(store.purpose, error, self.now)
        if stores:
            self.pump()

    def joined(self, waiter: int) -> JoinGroupResponse:
        response = self.answers[waiter]
        assert isinstance(response, JoinGroupResponse)
        return response

    def synced(self, waiter: int) -> SyncGroupResponse:
        response = self.answers[waiter]
        assert isinstance(response, SyncGroupResponse)
        return response

    def stable(self, count: int = 2, **fields: Any) -> list[str]:
        """Form a stable group of `count` members; return their ids, the leader first."""
        waiters = [self.join(**fields) for _ in range(count)]
        self.pass_ms(2 * DELAY_MS)
        ids = [self.joined(waiter).member_id for waiter in waiters]
        for member_id in ids:
            self.sync(member_id, assignments={each: each.encode() for each in ids})
        return ids

    def _at(self, loop_s: float) -> None:
        self.now = Instant(loop_s, self.now.wall_ms + round((loop_s - self.now.loop_s) * 1000))
