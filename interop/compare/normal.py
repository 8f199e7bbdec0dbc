"""Replace what may differ between two brokers (ids, times, addresses, order) by symbols."""

from collections.abc import Callable, Mapping
from typing import Any

from protocol.records.batch import headers

NOT_COMPARED = "<any>"
TEXT = "<text>"
NOW = "<now>"
_ZERO_ID = bytes(16)
# Named by what the first column says; members by order of appearance where nothing else tells them apart.
_KEYS = (
    "resource_type",
    "resource_name",
    "name",
    "topic",
    "topic_name",
    "group_id",
    "key",
    "api_key",
    "entity_type",
    "partition_index",
    "partition",
    "index",
    "partition_id",
    "user",
    "feature",
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
_TIMES = {"log_append_time_ms", "timestamp", "last_timestamp"}


class Normaliser:
    """Normalises the answers of one broker to one scenario; a symbol means the same value in all of them.

    base_time: the time in ms from which the timestamps of records were counted.
    keep: says which entries with a name (topics, groups) belong to the scenario; others are left out.
    """

    def __init__(self, base_time: int, keep: Callable[[str], bool] = lambda _: True) -> None:
        self._base_time = base_time
        self._keep = keep
        self._symbols: dict[tuple[str, Any], str] = {}
        self._counts: dict[str, int] = {}

    def answer(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return an answer as it is to be compared."""
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
        return [self.answer(one) for one in sorted(kept, key=order)]

    def _is_kept(self, one: Mapping[str, Any]) -> bool:
        named = one.get("group_id", one.get("resource_name", one.get("name") if "partitions" in one else None))
        return named is None or self._keep(named)

    def _symbol(self, kind: str, value: Any) -> Any:
        if value in {_ZERO_ID, "", 0, -1, None} or (isinstance(value, str) and value.startswith("given-")):
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
        """Return the headers of all batches, and the size of what is cut off at the end."""
        if data is None:
            return None
        found: list[Any] = []
        end = 0
        for position, header in headers(data):
            end = position + header.size
            crc = "of that time" if header.append_time_ms is not None else f"{header.crc:08x}"
            producer = f"{self._symbol('producer', header.producer_id)}/{header.producer_epoch}/{header.base_sequence}"
            found.append(
                f"{header.base_offset}..{header.last_offset} epoch {header.leader_epoch} "
                f"attributes {header.attributes} producer {producer} crc {crc}"
            )
        return [*found, f"cut {len(data) - end}"] if end < len(data) else found


def order(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what puts the elements of an array in order, whatever order they came in."""
    found = [value[key] for key in _KEYS if key in value]
    return tuple([str(one).rjust(12) if isinstance(one, int) else str(one) for one in found])


def identity(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what names an element of an array: its first key, or both of a resource."""
    found = [f"{value[key]}" for key in _KEYS if key in value and key != "metadata"]
    return tuple(found[:2])
