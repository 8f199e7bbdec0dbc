"""Operations of generated sequences about share group state, and the player that sends them.

Batches are compared offset by offset: Kafka does not merge all adjacent batches with the same state.
"""

from typing import Any

from hypothesis import strategies as st

from interop.compare.operations import Player
from interop.compare.scenarios.share_state import States
from interop.compare.session import Session

_TOPIC, _PARTITIONS = "jobs", 2
_GROUP = st.sampled_from(("g", "h"))
_PARTITION = st.sampled_from((0, 0, 1, 2))
_EPOCH = st.sampled_from((-1, 0, 0, 1, 2))
_START = st.sampled_from((-1, 0, 3, 8))
_BATCH = st.builds(
    lambda first, length, state, deliveries: (first, first + length, state, deliveries),
    st.integers(0, 12),
    st.integers(0, 4),
    st.sampled_from((0, 1, 2, 4)),
    st.integers(1, 3),
)
_WRITE = st.tuples(
    st.just("write"),
    _GROUP,
    _PARTITION,
    _EPOCH,
    _EPOCH,
    _START,
    st.integers(0, 9),
    st.lists(_BATCH, max_size=4).map(tuple),
)

SHARE_STATES = st.one_of(
    st.tuples(st.just("initialize"), _GROUP, _PARTITION, _EPOCH, _START),
    _WRITE,
    _WRITE,
    _WRITE,
    st.tuples(st.just("read"), _GROUP, _PARTITION, _EPOCH),
    st.tuples(st.just("summary"), _GROUP, _PARTITION),
    st.tuples(st.just("forget_state"), _GROUP, _PARTITION),
)


class ShareStatePlayer(Player):
    """Plays a sequence to one broker, as the leader of the partitions of one topic and as the group coordinator."""

    def __init__(self, s: Session) -> None:
        super().__init__(s)
        topic_id = s.topic_ids[s.topic(_TOPIC, _PARTITIONS)]
        self._groups = {name: States(s, name, topic_id) for name in ("g", "h")}
        for states in self._groups.values():
            states.until_served(_PARTITIONS)

    def _initialize(self, label: str, group: str, partition: int, epoch: int, start: int) -> None:
        first = {"partition": partition, "state_epoch": epoch, "start_offset": start}
        self._groups[group].ask(label, "Initialize", first)

    def _write(self, label: str, group: str, partition: int, *rest: Any) -> None:
        *numbers, batches = rest
        names = ("state_epoch", "leader_epoch", "start_offset", "delivery_complete_count")
        fields = dict(zip(names, numbers, strict=True))
        self._groups[group].write(label, *batches, partition=partition, **fields)
        self._summary(label, group, partition)

    def _read(self, label: str, group: str, partition: int, epoch: int) -> None:
        asked = {"partition": partition, "leader_epoch": epoch}
        answer = self.s.quietly("ReadShareGroupState", **self._groups[group].fields(asked))
        found = dict(answer["results"][0]["partitions"][0])
        states: dict[int, Any] = {}
        for each in found.pop("state_batches"):
            value = each["delivery_state"], each["delivery_count"]
            states |= dict.fromkeys(range(each["first_offset"], each["last_offset"] + 1), value)
        del found["error_message"]
        self.s.note(label, (found, states))

    def _summary(self, label: str, group: str, partition: int) -> None:
        asked = {"partition": partition, "leader_epoch": 0}
        self.s.ask(f"{label}: summary", "ReadShareGroupStateSummary", **self._groups[group].fields(asked))

    def _forget_state(self, label: str, group: str, partition: int) -> None:
        self._groups[group].ask(label, "Delete", {"partition": partition})
