"""Share fetches and acknowledgements (78 and 79): acquiring and returning records as members of a share group."""

import time
from collections.abc import Sequence
from typing import Any

from interop.compare.scenarios.share_state import States
from interop.compare.session import Session

_LIMIT_S = 30
_UNKNOWN = bytes(15) + b"\7"
_GAP, _ACCEPT, _RELEASE, _REJECT, _RENEW = range(5)
Ack = tuple[int, int, Sequence[int]]


class Member:
    """One member and its session; the answers to its requests are compared."""

    def __init__(self, s: Session, name: str, group: str, topic_id: bytes) -> None:
        self.s = s
        self.name = name
        self.group = group
        self.topic_id = topic_id
        self.epoch = 0

    def _fields(self, acks: Sequence[Ack], *partitions: int, **fields: Any) -> dict[str, Any]:
        names = ("first_offset", "last_offset", "acknowledge_types")
        ranges = [dict(zip(names, ack, strict=True)) for ack in acks]
        named = [
            {"partition_index": index, "acknowledgement_batches": ranges if not number else []}
            for number, index in enumerate(partitions)
        ]
        topics = [{"topic_id": self.topic_id, "partitions": named}] if named else []
        epoch = fields.pop("epoch", self.epoch)
        self.epoch = epoch + 1
        return {
            "group_id": self.group, "member_id": self.name, "share_session_epoch": epoch, "topics": topics, **fields,
        }  # fmt: skip

    def fetch(self, label: str, *acks: Ack, partitions: Sequence[int] | None = None, **fields: Any) -> dict[str, Any]:
        """Fetch, and compare the acquired records. Kafka answers before it unlocks a partition: the next one waits."""
        named = partitions if partitions is not None else ([0] if acks or not self.epoch else [])
        usual = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100}
        asked = self._fields(acks, *named, **usual | fields)
        answer: dict[str, Any] = self.s.quietly("ShareFetch", version=self.s.version("ShareFetch"), **asked)
        self.s.note(f"fetch {label}", _outcome(answer))
        return answer

    def until_loaded(self) -> None:
        """Open the session, and wait until one record, or its batch, is acquired."""
        self.until_acquired("the first", 1)

    def until_acquired(self, label: str, most: int) -> None:
        """Fetch until records are acquired, and compare them; give up after a timeout."""
        deadline = time.monotonic() + _LIMIT_S
        limits = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": most, "batch_size": 100}
        while time.monotonic() < deadline:
            asked = self._fields((), *(() if self.epoch else (0,)), **limits)
            answer = self.s.quietly("ShareFetch", version=self.s.version("ShareFetch"), **asked)
            if any(part["acquired_records"] for topic in answer["responses"] for part in topic["partitions"]):
                self.s.note(f"fetch {label}", _outcome(answer))
                return

    def acknowledge(self, label: str, *acks: Ack, partitions: Sequence[int] = (0,), **fields: Any) -> None:
        """Acknowledge records, and compare the outcome."""
        asked = self._fields(acks, *(partitions if acks else ()), **fields)
        answer = self.s.quietly("ShareAcknowledge", version=self.s.version("ShareAcknowledge"), **asked)
        self.s.note(f"acknowledge {label}", _outcome(answer))


def _outcome(answer: dict[str, Any]) -> list[Any]:
    """Return errors and acquired offsets, offset by offset, since brokers may divide the ranges differently."""
    outcome: list[Any] = [answer["error_code"]]
    for topic in answer["responses"]:
        for part in topic["partitions"]:
            acquired = [
                (offset, each["delivery_count"])
                for each in part.get("acquired_records", ())
                for offset in range(each["first_offset"], each["last_offset"] + 1)
            ]
            errors = part["error_code"], part.get("acknowledge_error_code", 0)
            if acquired or any(errors):
                outcome.append((part["partition_index"], *errors, acquired))
    return outcome


def _state(s: Session, name: str, topic_id: bytes) -> str:
    """Initialize a group's state at offset 0, and return the group's name."""
    states = States(s, name, topic_id)
    states.until_served(1)
    first = {"partition": 0, "state_epoch": 0, "start_offset": 0}
    s.quietly("InitializeShareGroupState", **states.fields(first))
    return states.group


def requests(s: Session) -> None:
    """Run the requests that both brokers support."""
    if not s.serves("ShareFetch"):
        return
    topic = s.topic("t", 1)
    topic_id = s.topic_ids[topic]
    s.fill(topic, *[s.batch(5) for _ in range(4)])
    _sessions(s, topic_id)
    _acknowledgements(s, topic_id)
    _deliveries(s, topic_id)
    _modes(s, topic_id)


def _sessions(s: Session, topic_id: bytes) -> None:
    group = _state(s, "sessions", topic_id)
    member = Member(s, "one", group, topic_id)
    member.acknowledge("in a new session", epoch=0)
    member.acknowledge("without a session", epoch=1)
    member.fetch("without a session", epoch=1)
    member.fetch("at the end of no session", epoch=-1)
    member.fetch("with acknowledgements in a new session", (0, 0, [_ACCEPT]), epoch=0)
    member.fetch("by an empty member id", epoch=0, member_id="")
    member.fetch("by a long member id", epoch=0, member_id="x" * 37)
    member.epoch = 0
    member.until_loaded()
    member.fetch("of an epoch from the future", epoch=99)
    member.acknowledge("of an epoch from the future", epoch=99)
    member.fetch("of the first epoch again", epoch=1)
    member.fetch("of an unknown partition", partitions=[7], epoch=0)
    member.topic_id = _UNKNOWN
    member.fetch("of an unknown topic", epoch=0)
    member.acknowledge("of an unknown topic", (0, 0, [_ACCEPT]))
    member.topic_id = topic_id
    member.fetch("of the last epoch", epoch=-1)
    member.fetch("after the end", epoch=3)


def _acknowledgements(s: Session, topic_id: bytes) -> None:
    group = _state(s, "acknowledgements", topic_id)
    member, other = Member(s, "one", group, topic_id), Member(s, "two", group, topic_id)
    member.until_loaded()
    member.fetch("the rest")
    bad: Sequence[tuple[str, Ack]] = (
        ("backwards", (3, 2, [_ACCEPT])), ("without types", (0, 0, [])), ("with too many types", (0, 1, [1, 1, 1])),
        ("of an unknown type", (0, 0, [5])), ("of a negative type", (0, 0, [-1])), ("a renewal", (0, 0, [_RENEW])),
        ("past the end", (19, 25, [_ACCEPT])), ("far past the end", (100, 101, [_ACCEPT])),
    )  # fmt: skip
    for label, ack in bad:
        member.acknowledge(label, ack)
    member.acknowledge("overlapping", (0, 3, [_ACCEPT]), (2, 4, [_ACCEPT]))
    other.fetch("nothing")
    other.acknowledge("what another holds", (0, 0, [_ACCEPT]))
    member.acknowledge("of each type", (0, 4, [_ACCEPT, _RELEASE, _REJECT, _GAP, _ACCEPT]))
    member.acknowledge("again", (0, 4, [_ACCEPT]))
    member.acknowledge("the released one", (1, 1, [_ACCEPT]))
    other.fetch("what was released")
    other.fetch("with acknowledgements", (1, 1, [_ACCEPT]))
    member.acknowledge("before the start offset", (0, 3, [_ACCEPT]))
    member.acknowledge("across the start offset", (3, 6, [_ACCEPT]))
    member.acknowledge("the rest", (7, 19, [_RELEASE]))
    other.fetch("all that is left")
    other.fetch("at the end of its session", epoch=-1)
    member.until_acquired("what was given back", 100)


def _deliveries(s: Session, topic_id: bytes) -> None:
    group = _state(s, "deliveries", topic_id)
    member = Member(s, "one", group, topic_id)
    member.until_loaded()
    member.acknowledge("the first", (0, 4, [_RELEASE]))
    for number in range(12):
        answer = member.fetch(f"{number}", max_records=5)
        acks = [
            (each["first_offset"], each["last_offset"], [_RELEASE])
            for topic in answer["responses"]
            for part in topic["partitions"]
            for each in part["acquired_records"]
        ]
        member.acknowledge(f"{number}", *acks)


def _modes(s: Session, topic_id: bytes) -> None:
    if s.version("ShareFetch") < 2:
        return
    group = _state(s, "modes", topic_id)
    member = Member(s, "one", group, topic_id)
    member.until_loaded()
    exact: dict[str, Any] = {"share_acquire_mode": 1}
    member.fetch("three exactly", max_records=3, **exact)
    member.fetch("four exactly", max_records=4, **exact)
    member.fetch("one, or a batch", max_records=1)
    member.acknowledge("some", (5, 8, [_ACCEPT, _RELEASE, _RELEASE, _RELEASE]))
    member.fetch("two exactly", max_records=2, **exact)
    zero: dict[str, Any] = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 0}
    member.fetch("to renew, with limits", (6, 6, [_RENEW]), is_renew_ack=True)
    member.fetch("to renew", (6, 6, [_RENEW]), is_renew_ack=True, **zero)
    member.acknowledge("to renew", (6, 6, [_RENEW]), is_renew_ack=True)
    member.acknowledge("to renew what is not held", (0, 30, [_RENEW]), is_renew_ack=True)
