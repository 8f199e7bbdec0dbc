"""What another program took back from a table: a restore of Delta, or a rollback of Iceberg."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from warmlog.pipeline.lakehouse.present import PresentRows
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

SHOWN = 5  # maximum partitions in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """Rows that were taken back, or brought back. `how`: what was done, `where`: by which commit, for messages.

    `before`: positions that no longer fit the rows. `positions`: where these rows end; None if the table has none, and
    nothing says where they began. `kept`: positions that fit, of topics of which others are None. `newest`: the newest
    receipt that remains, or else that was taken back. `taken`: the receipts of each partition that were taken back,
    newest first. `earlier`: partitions of which the remaining rows are of an earlier topic of the name. `options`: what
    a command needs to open the table, besides its name.
    """

    how: str
    where: str
    before: Mapping[TopicPartition, Position]
    positions: Mapping[TopicPartition, Position | None]
    newest: Receipt
    taken: Mapping[TopicPartition, Sequence[Receipt]]
    kept: Mapping[TopicPartition, Position] = field(default_factory=dict)
    earlier: frozenset[TopicPartition] = frozenset()
    options: str = ""

    def without_present(self, rows: PresentRows) -> "TakenBack | None":
        """Return the same with positions by the rows that are there; None if all fit. Raises PipelineError.

        Other programs may have brought rows back.
        """
        positions: dict[TopicPartition, Position | None] = {}
        for key, position in self.positions.items():
            if position is None:
                rows.check_end({key: Position(offset=0)})
                positions[key] = None
                continue
            end = rows.end(key, position, self.before[key], self.taken.get(key, ()))
            if end is not None:
                positions[key] = end
        kept = {key: at for key, at in self.before.items() if key not in positions}
        return replace(self, positions=positions, kept={**self.kept, **kept}) if positions else None

    def message(self, table: str) -> str:
        """Return a sentence for the user of a job."""
        gone, back = [], []
        for key, position in sorted(self.positions.items(), key=lambda item: item[0]):
            name, before = f"{key[0]}-{key[1]}", self.before[key]
            if position is None:
                gone.append(f"{name} from its first offset")
            elif is_ahead(position, before):
                back.append(f"{name} from offset {before.offset}")
            else:
                remaining = f" (the remaining rows are of an earlier topic {key[0]})" if key in self.earlier else ""
                gone.append(f"{name} from offset {position.offset}{remaining}")
        changes = [f"took back rows of {_listed(gone)}"] if gone else []
        changes += [f"brought back rows of {_listed(back)}"] if back else []
        what = "copy them again" if gone else "continue after them"
        return (
            f"{table} was {self.how}, which {' and '.join(changes)} ({self.where})."
            f" To {what}: warmlog pipeline table rewind {table}{self.options}"
        )


def together(listed: Sequence[TakenBack]) -> TakenBack:
    """Return what was taken back from several topics by the same commit; `listed` has an entry for each."""
    return replace(
        listed[0],
        before={key: at for taken in listed for key, at in taken.before.items()},
        earlier=frozenset().union(*(taken.earlier for taken in listed)),
        positions={key: at for taken in listed for key, at in taken.positions.items()},
        taken={key: receipts for taken in listed for key, receipts in taken.taken.items()},
        kept={key: at for taken in listed for key, at in taken.kept.items()},
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more partitions" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def end_of(
    before: Position, remaining: Position | None, key: TopicPartition, taken: Sequence[Receipt]
) -> Position | None:
    """Return where the rows of a position's topic end.

    `remaining`: where rows end by the receipts that remain; those of an earlier topic of the same name do not count.
    `taken`: the receipts that were taken back.
    """
    if remaining is None or not is_other(remaining, before):
        return remaining
    spans = [receipt.spans[key] for receipt in taken if receipt.spans[key].end.topic_id == before.topic_id]
    if not spans:
        return remaining
    return Position(offset=min(span.first for span in spans), topic_id=before.topic_id)


def is_other(first: Position, second: Position) -> bool:
    """Return whether two positions are of different topics."""
    return None not in {first.topic_id, second.topic_id} and first.topic_id != second.topic_id


def is_ahead(first: Position, second: Position) -> bool:
    """Return whether a position is after another one of the same topic."""
    return first.topic_id == second.topic_id and first.offset > second.offset
