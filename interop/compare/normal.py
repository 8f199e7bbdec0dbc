"""Replace values that may differ between two brokers (ids, times, addresses, order) by symbols."""

from collections.abc import Callable, Mapping
from typing import Any

from warmlog.protocol.records.batch import headers

NOT_COMPARED = "<any>"
TEXT = "<text>"
NOW = "<now>"
# Producer ids invented by scenarios; a new broker assigns smaller ones.
FIRST_GIVEN_PRODUCER = 5000
_ZERO_ID = bytes(16)
_UNKNOWN = "~"  # sorts after all symbols
# Named by the first column; members by order of appearance if they cannot be distinguished otherwise.
_KEYS = (
    "resource_type",
    "resource_name",
    "name",
    "topic",
    "topic_name",
    "group_id",
    "transactional_id",
    "key",
    "api_key",
    "entity_type",
    "partition_index",
    "partition",
    "index",
    "partition_id",
    "user",
    "feature",
    "topic_id",
    "member_id",
    "subtopology_id",
    "status_code",
    "producer_id",
    "group_instance_id",
    "mechanism",
    "producer_epoch",
    "metadata",
)
_SYMBOLS = {
    "topic_id": "topic",
    "producer_id": "producer",
    "session_id": "session",
    "member_id": "member",
    "leader": "member",
}
_ANY = {
    "host",
    "port",
    "client_host",
    "log_dir",
    "cluster_id",
    "total_bytes",
    "usable_bytes",
    "finalized_features_epoch",
    "replica_directory_id",
    "last_fetch_timestamp",
    "last_caught_up_timestamp",
    "log_end_offset",
}
_TEXTS = {"error_message", "batch_index_error_message"}
_TIMES = {"log_append_time_ms", "timestamp", "last_timestamp", "transaction_start_time_ms"}


class Normaliser:
    """Normalises the answers of one broker to one scenario; a symbol means the same value in all of them.

    base_time: the time in ms that the timestamps of records are relative to.
    keep: decides which named entries (topics, groups) belong to the scenario; others are omitted.
    """

    def __init__(self, base_time: int, keep: Callable[[str], bool] = lambda _: True) -> None:
        self._base_time = base_time
        self._keep = keep
        self._symbols: dict[tuple[str, Any], str] = {}
        self._counts: dict[str, int] = {}

    def name_topic(self, topic_id: bytes, name: str) -> None:
        """Name the symbol of a topic's id after the topic; a recreated topic gets a number."""
        if topic_id != _ZERO_ID and ("topic", topic_id) not in self._symbols:
            number = self._counts[name] = self._counts.get(name, 0) + 1
            self._symbols["topic", topic_id] = f"<topic {name}>" if number == 1 else f"<topic {name} #{number}>"

    def answer(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a response in the form to compare."""
        named = values.get("name", values.get("topic"))
        if named and "topic_id" in values:
            self.name_topic(values["topic_id"], named)
        return {name: self._value(name, value) for name, value in values.items() if name != "throttle_time_ms"}

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return self.answer(value)
        if isinstance(value, list):
            return self._array(name, value)
        if name in _ANY:
            return NOT_COMPARED
        if name in _SYMBOLS:
            return self._symbol(_SYMBOLS[name], value)
        return self._leaf(name, value)

    def _leaf(self, name: str, value: Any) -> Any:
        if name in _TEXTS:
            return TEXT if value else None
        if name in _TIMES and value is not None and value > 0:
            return self._time(value)
        return self._records(value) if name == "records" else value

    def _array(self, name: str, values: list[Any]) -> list[Any]:
        if not values or not isinstance(values[0], dict):
            return sorted(values) if name != "mechanisms" else values
        kept = [one for one in values if self._is_kept(one)]
        return [self.answer(one) for one in sorted(kept, key=self._order)]

    def _order(self, value: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the sort key of elements: their names, then their known symbols."""
        known = [self._known(kind, value[name]) for name, kind in _SYMBOLS.items() if name in value]
        return (*order(value), *known)

    def _known(self, kind: str, value: Any) -> str:
        return str(value) if _is_given(kind, value) else self._symbols.get((kind, value), _UNKNOWN)

    def _is_kept(self, one: Mapping[str, Any]) -> bool:
        named = one.get("group_id", one.get("resource_name", one.get("name") if "partitions" in one else None))
        if "transaction_state" in one:
            named = one["transactional_id"] or None
        return named is None or self._keep(named)

    def _symbol(self, kind: str, value: Any) -> Any:
        if _is_given(kind, value):
            return value
        known = self._symbols.get((kind, value))
        if known is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            known = self._symbols[kind, value] = f"<{kind} {self._counts[kind]}>"
        return known

    def _time(self, value: int) -> str | int:
        since = value - self._base_time
        return f"T+{since}" if abs(since) < 600_000 else NOW if 0 < since < 86_400_000 else value

    def _records(self, data: bytes | None) -> Any:
        """Return the headers of all batches, and the size of an incomplete one at the end."""
        if data is None:
            return None
        found: list[Any] = []
        end = 0
        for position, header in headers(data):
            end = position + header.size
            is_of_that_time = header.append_time_ms is not None or header.is_control
            crc = "of that time" if is_of_that_time else f"{header.crc:08x}"
            producer = f"{self._symbol('producer', header.producer_id)}/{header.producer_epoch}/{header.base_sequence}"
            found.append(
                f"{header.base_offset}..{header.last_offset} epoch {header.leader_epoch} "
                f"attributes {header.attributes} producer {producer} crc {crc}"
            )
        return [*found, f"cut {len(data) - end}"] if end < len(data) else found


def order(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sort key of an array's elements, whose order may differ."""
    found = [value[key] for key in _KEYS if key in value and key not in _SYMBOLS]
    return tuple([str(one).rjust(12) if isinstance(one, int) else str(one) for one in found])


def identity(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the name of a normalised element of an array: its first key, or both of a resource."""
    found = [f"{value[key]}" for key in _KEYS if value.get(key) is not None and key != "metadata"]
    return tuple(found[: 2 if "resource_type" in value else 1])


def _is_given(kind: str, value: Any) -> bool:
    """Return whether an id is empty or was chosen by the scenario, and is therefore the same for both brokers."""
    if value in {_ZERO_ID, "", 0, -1, None}:
        return True
    match kind:
        case "member":
            return str(value).startswith("given-")
        case "topic":
            return len(set(value)) == 1
        case "producer":
            return bool(value >= FIRST_GIVEN_PRODUCER)
    return False
