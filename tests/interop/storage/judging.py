"""What Kafka's tool is asked about, and what counts as a complaint of it."""

from pathlib import Path

from interop.kafka_node import Dump


def files_below(directory: Path, suffix: str) -> list[Path]:
    """Files of a kind; an empty one is left out, as Kafka's tool cannot map it."""
    return [path for path in sorted(directory.rglob(f"*{suffix}")) if path.stat().st_size]


def findings(dumps: list[Dump]) -> list[str]:
    """Everything that was found wrong, with the file."""
    return [f"{each.arguments}: {finding}" for each in dumps for finding in each.findings()]
