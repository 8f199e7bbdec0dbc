"""Whatever is restored, a job refuses a table of which rows are missing, or would be twice, and no other."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.delta.restored import delta, opened, restored_by_spark, rewound
from tests.pipeline.lakehouse.random_acts import RandomActs
from tests.pipeline.lakehouse.tables import copied, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.test_exactly_once import BOTH, append_foreign_row
from tests.pipeline.lakehouse.test_maintenance import maintained
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, Model, model_in, upserted
from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED, Wanted, wanted_of


class Actor(RandomActs):
    """Copies, restores, accepts, compacts and maintains at random.

    A job has to refuse unsound tables, and only those.
    """

    @property
    def table(self) -> deltalake.DeltaTable:
        return delta(self.directory)

    def acts(self) -> list[Callable[[], Any]]:
        return [self.copy, self.copy_in_steps, self.accept, self.write, self.maintain, self.compact, self.checkpoint]

    def act(self) -> None:
        chosen = self.choose.choice([*self.acts(), *[self.restore] * 3, self.restore_with_spark])
        (chosen if self.table.version() else self.copy)()

    def stored(self) -> dict[int, int]:
        """The position of each partition."""
        stored = opened(self.directory).stored_positions([("orders", 0), ("orders", 1)])
        return {number: end.offset for (_, number), end in stored.items()}

    def rewound(self) -> list[Any]:
        return rewound(self.directory)

    def restore(self) -> None:
        self.table.restore(self.choose.randrange(self.table.version()))

    def restore_with_spark(self) -> None:
        version = self.choose.randrange(self.table.version())
        by_time = {"version": None, "timestamp": "2026-11-30 04:00:00"}
        restored_by_spark(
            self.directory, version, self.choose.choice([by_time, {"version": version, "timestamp": None}])
        )

    def maintain(self) -> None:
        if self.is_sound():
            maintained(self.directory, "delta")

    def compact(self) -> None:
        self.table.optimize.compact()

    def checkpoint(self) -> None:
        self.table.create_checkpoint()


class Appender(Actor):
    """Each record has a row; another program adds rows of its own."""

    def __init__(self, writer: DirectoryWriter, directory: Path, seed: int, wanted: Wanted) -> None:
        super().__init__(writer, directory, seed)
        self.written = list(BOTH)
        open_in(directory, "delta", wanted=wanted)

    def acts(self) -> list[Callable[[], Any]]:
        return [*super().acts(), partial(append_foreign_row, self.directory, "delta")]

    def rows(self) -> list[tuple[int, int]]:
        rows = self.table.to_pyarrow_table(columns=["partition", "offset"])
        listed = zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
        return sorted(row for row in listed if row != (7, 7))

    def is_sound(self) -> bool:
        return self.rows() == [(number, at) for number, end in sorted(self.stored().items()) for at in range(end)]

    def is_complete(self) -> bool:
        return self.rows() == sorted(self.written)

    def write(self) -> None:
        self.written.extend((0, self.writer.next_offset + at) for at in range(5))
        self.writer.segment([b"z"] * 5)

    def run(self, **how: Any) -> None:
        copied(open_in(self.directory, "delta"), options_of(self.writer, **how))


class Upserter(Actor):
    """Each key has a row."""

    writer: KeyedWriter

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(KeyedWriter(directory / "data"), directory, seed)
        open_in(directory, "delta")
        self.write()

    def model(self, end: int) -> Model:
        """What the records below an offset leave."""
        newest = {key: (at, value) for at, (key, value) in enumerate(self.writer.records[:end]) if key is not None}
        return {(0, key): (at, value) for key, (at, value) in newest.items() if value is not None}

    def is_sound(self) -> bool:
        return model_in(self.directory, "delta") == self.model(self.stored().get(0, 0))

    def is_complete(self) -> bool:
        return model_in(self.directory, "delta") == self.writer.model

    def write(self) -> None:
        keys = [b"k%d" % self.choose.randrange(12) for _ in range(10)]
        self.writer.add(*((key, self.choose.choice([None, b"v%d" % at, b"w"])) for at, key in enumerate(keys)))

    def run(self, **how: Any) -> None:
        upserted(open_in(self.directory, "delta"), self.writer, **how)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.interop) for seed in range(1, 4))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("wanted", [NOTHING_WANTED, wanted_of(["partition"], [])], ids=["plain", "partitioned"])
def test_each_offset_is_there_once_in_the_end(
    writer: DirectoryWriter, tmp_path: Path, wanted: Wanted, seed: int
) -> None:
    _acted(Appender(writer, tmp_path, seed, wanted))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_key_has_its_newest_row_in_the_end(tmp_path: Path, seed: int) -> None:
    _acted(Upserter(tmp_path, seed))


def _acted(actor: Actor) -> None:
    for _ in range(40):
        actor.act()
    actor.copy()
    assert audited(actor.directory, "delta", options_of(actor.writer)).findings == []
