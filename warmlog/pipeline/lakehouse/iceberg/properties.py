"""The property of an Iceberg table with the positions of a topic, `warmlog.TOPIC` (see `table`)."""

import json
from collections.abc import Mapping

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.receipts import KEY, UNKNOWN_ID
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition


def positions_text(receipt_id: str, positions: Mapping[TopicPartition, Position]) -> str:
    """Return the value of the property."""
    by_id: dict[str, dict[str, list[int | None]]] = {}
    for (_, partition), position in sorted(positions.items()):
        listed = by_id.setdefault(position.topic_id or UNKNOWN_ID, {})
        listed[str(partition)] = [position.offset, position.leader_epoch]
    return json.dumps({"receipt": receipt_id, "positions": by_id}, separators=(",", ":"))


def parse_positions(topic: str, text: str, table: str) -> tuple[str, dict[TopicPartition, Position]]:
    """Return the id of the receipt and the positions in a property. Raises PipelineError."""
    try:
        form = json.loads(text)
        return form["receipt"], {
            (topic, int(partition)): Position(offset=int(offset), leader_epoch=epoch, topic_id=topic_id or None)
            for topic_id, listed in form["positions"].items()
            for partition, (offset, epoch) in listed.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PipelineError(
            f"{table}: property {KEY}.{topic} is damaged ({error!r}): set it as an earlier metadata file has it, or"
            " remove it, so that the receipts of the snapshots decide"
        ) from error
