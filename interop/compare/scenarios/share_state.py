"""Share group state (83 to 87), which brokers store for each other, and the coordinators of share groups."""

import time
from typing import Any

from interop.compare.session import Session
from warmlog.protocol.kafka.messages.common import topic_id_text

_SHARE = 2  # key type of FindCoordinator
_LIMIT_S = 30
_PARTITIONS = 3
_UNKNOWN = bytes(15) + b"\7"
_ACQUIRED, _ACKNOWLEDGED, _ARCHIVED = 1, 2, 4


class States:
    """The requests about share-partitions of a topic in a group."""

    def __init__(self, s: Session, group: str, topic_id: bytes) -> None:
        self.s = s
        self.group = s.group(group)
        self.topic_id = topic_id

    def ask(self, label: str, api: str, *partitions: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """Send a request and compare the response."""
        return self.s.ask(label, f"{api}ShareGroupState", **{**self.fields(*partitions), **fields})

    def fields(self, *partitions: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a request about these share-partitions."""
        return {"group_id": self.group, "topics": [{"topic_id": self.topic_id, "partitions": [*partitions]}]}

    def initialize(self, label: str, partition: int = 0, epoch: int = 0, start: int = 0) -> None:
        """Set the initial state of a share-partition."""
        first = {"partition": partition, "state_epoch": epoch, "start_offset": start}
        self.ask(f"initialize {label}", "Initialize", first)

    def write(self, label: str, *batches: tuple[int, int, int, int], **fields: int) -> None:
        """Write batches: first and last offset, state and deliveries."""
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        usual = {"partition": 0, "state_epoch": 0, "leader_epoch": 0, "start_offset": -1, "delivery_complete_count": 0}
        states = [dict(zip(names, batch, strict=True)) for batch in batches]
        self.ask(f"write {label}", "Write", {**usual, **fields, "state_batches": states})

    def read(self, label: str, epoch: int = 0, partition: int = 0) -> None:
        """Read a state and its summary."""
        asked = {"partition": partition, "leader_epoch": epoch}
        self.ask(f"read {label}", "Read", asked)
        self.s.ask(f"summary {label}", "ReadShareGroupStateSummary", **self.fields(asked))

    def until_served(self, partitions: int) -> None:
        """Find the coordinators, and wait until they respond and know the topic."""
        deadline = time.monotonic() + _LIMIT_S
        asked = self.fields(*[{"partition": index, "leader_epoch": 0} for index in range(partitions)])
        keys = [f"{self.group}:{topic_id_text(self.topic_id)}:{index}" for index in range(partitions)]
        while time.monotonic() < deadline:
            found = self.s.quietly("FindCoordinator", key_type=_SHARE, coordinator_keys=keys)
            if not any(each["error_code"] for each in found["coordinators"]):
                (answer,) = self.s.quietly("ReadShareGroupStateSummary", **asked)["results"]
                if not any(each["error_code"] for each in answer["partitions"]):
                    return
            time.sleep(0.05)


def requests(s: Session) -> None:
    """Run the requests that both brokers support."""
    if not s.serves("InitializeShareGroupState"):
        return
    topic_id = s.topic_ids[s.topic("t", _PARTITIONS)]
    _keys(s, topic_id)
    _bad(States(s, "bad", topic_id))
    _epochs(States(s, "epochs", topic_id))
    _batches(States(s, "batches", topic_id))
    _several(s, States(s, "several", topic_id))


def _keys(s: Session, topic_id: bytes) -> None:
    states = States(s, "keys", topic_id)
    states.until_served(_PARTITIONS)
    text = topic_id_text(topic_id)
    keys = ["", "g", "g:0", f"g:{text}", f":{text}:0", f" :{text}:0", f"g:{text}:x", f"g:{text}:0:1", f"g:{text}:0"]
    for version in (4, 6):
        for number, key in enumerate(keys):
            fields = {"key_type": _SHARE, "coordinator_keys": [key]}
            found = s.quietly("FindCoordinator", version=version, **fields)["coordinators"][0]
            s.note(f"coordinator of key {number}, version {version}", (found["error_code"], found["node_id"] >= 0))


def _bad(states: States) -> None:
    states.until_served(_PARTITIONS)
    states.initialize("a negative partition", partition=-1)
    states.initialize("a partition that does not exist", partition=3)
    states.initialize("a negative epoch", epoch=-1)
    states.write("without a state")
    states.read("without a state")
    states.ask("delete without a state", "Delete", {"partition": 0})
    states.ask("delete a negative partition", "Delete", {"partition": -1})
    states.ask("delete a partition that does not exist", "Delete", {"partition": 3})
    states.read("a negative partition", partition=-1)
    states.read("a partition that does not exist", partition=3)
    states.read("in a negative epoch", epoch=-1)
    unknown = [{"topic_id": _UNKNOWN, "partitions": [{"partition": 0, "state_epoch": 0, "start_offset": 0}]}]
    states.ask("initialize an unknown topic", "Initialize", topics=unknown)
    for api in ("Initialize", "Read", "Write", "Delete"):
        states.ask(f"{api} without topics", api, topics=[])
        states.ask(f"{api} without partitions", api)
        states.ask(f"{api} without a group", api, {"partition": 0}, group_id="")


def _epochs(states: States) -> None:
    states.until_served(_PARTITIONS)
    states.initialize("first", epoch=3, start=7)
    states.read("first")
    states.initialize("of an earlier epoch", epoch=2)
    states.initialize("of the same epoch", epoch=3, start=8)
    states.write("of an earlier state epoch", state_epoch=2)
    states.write("of a later state epoch", (8, 9, _ACKNOWLEDGED, 1), state_epoch=4)
    states.write("of a negative leader epoch", state_epoch=3, leader_epoch=-1)
    states.write("of a negative state epoch", state_epoch=-1)
    states.write("of a later leader", (10, 10, _ACKNOWLEDGED, 1), state_epoch=3, leader_epoch=6)
    states.read("after it")
    states.read("of a later leader", epoch=5)
    states.read("of the same leader", epoch=5)
    states.read("of an earlier leader", epoch=4)
    states.write("of an earlier leader", state_epoch=3, leader_epoch=4)
    states.initialize("again", epoch=9, start=-1)
    states.read("after that", epoch=5)
    states.ask("delete", "Delete", {"partition": 0})
    states.read("after the deletion")
    states.initialize("of epoch 0 after the deletion")
    states.read("of epoch 0")


def _batches(states: States) -> None:
    states.until_served(_PARTITIONS)
    states.initialize("first")
    states.write("acquired", (0, 9, _ACQUIRED, 1), (10, 19, _ACQUIRED, 2), (20, 29, _ACQUIRED, 1), start_offset=0)
    states.read("acquired")
    states.write("within", (3, 5, _ACKNOWLEDGED, 1), (12, 25, 0, 1), delivery_complete_count=3)
    states.read("within")
    states.write("overlapping", (0, 4, _ARCHIVED, 3), (2, 8, _ACKNOWLEDGED, 3), (30, 30, 0, 1), start_offset=2)
    states.read("overlapping")
    states.write("that completes more", start_offset=2, delivery_complete_count=9)
    states.write("that completes less", start_offset=2, delivery_complete_count=4)
    states.read("that completes less")
    states.write("with an earlier start", (1, 1, _ARCHIVED, 9), start_offset=1, delivery_complete_count=20)
    states.read("with an earlier start")
    states.write("with a later start", start_offset=15, delivery_complete_count=1)
    states.read("with a later start")
    states.write("without anything")
    states.read("without anything")


def _several(s: Session, states: States) -> None:
    states.until_served(_PARTITIONS)
    first = [{"partition": index, "state_epoch": 0, "start_offset": index} for index in (0, 2, 3, 1)]
    for each in first:
        states.ask(f"initialize partition {each['partition']}", "Initialize", each)
    for index in range(4):
        states.read(f"of {index}", partition=index)
    asked = [{"partition": index, "leader_epoch": 0} for index in (0, 1)]
    answer = s.quietly("ReadShareGroupState", **states.fields(*asked))
    found = [(each["partition"], each["start_offset"]) for each in answer["results"][0]["partitions"]]
    s.note("several at the same time", sorted(found))
