"""Delta tables that other programs restore."""

import json
from pathlib import Path
from typing import Any

import deltalake

from tests.pipeline.lakehouse.tables import open_in
from warmlog.pipeline.lakehouse.delta.table import DeltaTable
from warmlog.pipeline.lakehouse.rewinding import rewind


def delta(directory: Path) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(str(directory / "delta"))


def opened(directory: Path) -> DeltaTable:
    table = open_in(directory, "delta", ())
    assert isinstance(table, DeltaTable)
    return table


def rewound(directory: Path, **how: Any) -> list[tuple[int, int, int | None]]:
    """Accept a restore; return partitions with their offsets before and after."""
    done = rewind(opened(directory), pause=lambda _: None, **how)
    return [(each.partition, each.before, each.after) for each in done]


def log_file(directory: Path, version: int) -> Path:
    return directory / "delta" / "_delta_log" / f"{version:020d}.json"


def restored_by_spark(directory: Path, version: int, parameters: dict[str, Any]) -> None:
    """Restore a version with a commit that describes itself as Spark does."""
    table = delta(directory)
    table.restore(version)
    path = log_file(directory, table.version())
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    info = {
        "timestamp": actions[0].get("commitInfo", {}).get("timestamp", 1_764_000_000_000),
        "operation": "RESTORE",
        "operationParameters": parameters,
        "readVersion": table.version() - 1,
        "isolationLevel": "Serializable",
        "isBlindAppend": False,
        "operationMetrics": {"numRestoredFiles": "0", "numRemovedFiles": "2", "tableSizeAfterRestore": "1000"},
        "engineInfo": "Apache-Spark/4.1.4 Delta-Lake/4.1.0",
        "txnId": "0f7f6a1c-3c1e-4a0b-9a57-5d2c8e4b7f10",
    }
    kept = [action for action in actions if "commitInfo" not in action]
    path.write_text("".join(json.dumps(action) + "\n" for action in ({"commitInfo": info}, *kept)))
