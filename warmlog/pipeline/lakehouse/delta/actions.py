"""The actions of a commit to a Delta table: files with their statistics, and positions as application transactions."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from warmlog.pipeline.lakehouse.arrangement.delta import partition_values
from warmlog.pipeline.lakehouse.arrangement.spec import PLAIN, Arrangement
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.writing import NewFile
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

PREFIX = "warmlog"
NO_EPOCH = -1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def transactions_of(receipt: Receipt, known: Mapping[TopicPartition, Position | None]) -> list[Any]:
    """Return the application transactions that store the receipt's end positions. `known`: the table's positions."""
    from deltalake import Transaction

    transactions = []
    for key, span in receipt.spans.items():
        app, before, end = transaction_app(key), known.get(key), span.end
        transactions.append(Transaction(app, end.offset))
        if (None if before is None else before.leader_epoch) != end.leader_epoch:
            transactions.append(Transaction(f"{app}/epoch", NO_EPOCH if end.leader_epoch is None else end.leader_epoch))
        if (None if before is None else before.topic_id) != end.topic_id:
            high, low = _numbers_of(end.topic_id)
            transactions += [Transaction(f"{app}/id-high", high), Transaction(f"{app}/id-low", low)]
    return transactions


def add_action(file: NewFile, arrangement: Arrangement = PLAIN, *, data_change: bool = True) -> Any:
    """Return the action that adds a file. `data_change`: whether its rows are new."""
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.name,
        size=file.size,
        partition_values=partition_values(arrangement, file.partition),
        modification_time=now_ms(),
        data_change=data_change,
        stats=json.dumps(stats_of(file, arrangement.bounded)),
    )


def remove_action(file: DataFile, uri: str, arrangement: Arrangement = PLAIN, *, data_change: bool = True) -> Any:
    """Return the action that removes a file of the table at `uri`. `data_change`: whether its rows change."""
    from deltalake.transaction import RemoveAction

    return RemoveAction(
        path=file.path.removeprefix(f"{uri.rstrip('/')}/"),
        data_change=data_change,
        deletion_timestamp=now_ms(),
        size=file.size,
        partition_values=partition_values(arrangement, file.partition or ()),
    )


def now_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return round(datetime.now(UTC).timestamp() * 1000)


def transaction_app(key: TopicPartition) -> str:
    """Return the application id of a partition's position."""
    return f"{PREFIX}/{key[0]}/{key[1]}"


def _numbers_of(topic_id: str | None) -> tuple[int, int]:
    """Return a topic id as two numbers; zeros if unknown."""
    if topic_id is None:
        return 0, 0
    data = urlsafe_b64decode(topic_id + "==")
    return int.from_bytes(data[:8], signed=True), int.from_bytes(data[8:], signed=True)


def topic_id_of(high: int, low: int) -> str:
    """Return the topic id that two numbers represent."""
    data = high.to_bytes(8, signed=True) + low.to_bytes(8, signed=True)
    return urlsafe_b64encode(data).decode().rstrip("=")


def stats_of(file: NewFile, bounded: Collection[str]) -> dict[str, Any]:
    """Return the statistics of a file as Delta writes them: bounds of the columns `bounded`, or none if one is unknown.

    Readers may take a column without bounds beside others for one without values (see `arrangement.delta`).
    """
    bounds = {name: file.bounds[name] for name in bounded if name in file.bounds}
    if "timestamp" in bounds:
        low, high = bounds["timestamp"]
        bounds["timestamp"] = _time(low, 0), _time(high, 999)
    if not bounds or len(bounds) < len(bounded) or any(None in pair for pair in bounds.values()):
        return {"numRecords": file.rows}
    return {
        "numRecords": file.rows,
        "minValues": {name: low for name, (low, _) in bounds.items()},
        "maxValues": {name: high for name, (_, high) in bounds.items()},
        "nullCount": dict.fromkeys(bounds, 0),
    }


def _time(time_us: int, rounding_us: int) -> str | None:
    """Return a time in milliseconds, the precision of statistics, or None for times after the year 9999."""
    try:
        time = EPOCH + timedelta(milliseconds=(time_us + rounding_us) // 1000)
    except OverflowError:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"
