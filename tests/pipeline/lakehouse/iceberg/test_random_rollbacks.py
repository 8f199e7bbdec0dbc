"""Whatever is rolled back, a job refuses a table of which rows are missing, or would be twice, and no other."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.iceberg.rolled import append_nothing, expire, make_current, opened, rewound, snapshots
from tests.pipeline.lakehouse.random_acts import RandomActs
from tests.pipeline.lakehouse.tables import copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.test_exactly_once import BOTH, append_foreign_row, iceberg_table
from tests.pipeline.lakehouse.test_maintenance import maintained
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, Model, model_in, upserted
from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED, Wanted, wanted_of
from warmlog.pipeline.lakehouse.iceberg.history import History
from warmlog.pipeline.lakehouse.iceberg.properties import parse_positions


class Actor(RandomActs):
    """Copies, rolls back, accepts and maintains at random. A job has to refuse unsound tables, and only those."""

    min_step = 8

    def acts(self) -> list[Callable[[], Any]]:
        nothing = partial(append_nothing, self.directory)
        return [self.copy, self.copy_in_steps, self.accept, self.write, self.maintain, nothing, self.expire_taken]

    def act(self) -> None:
        self.choose.choice([*self.acts(), *[self.roll_back] * 4])()

    def stored(self) -> dict[int, int]:
        """The position of each partition."""
        text = iceberg_table(self.directory).properties.get("warmlog.orders")
        stored = {} if text is None else parse_positions("orders", text, "db.orders")[1]
        return {number: end.offset for (_, number), end in stored.items()}

    def rewound(self) -> list[Any]:
        return rewound(self.directory)

    def roll_back(self) -> None:
        make_current(self.directory, self.choose.choice(snapshots(self.directory)))

    def maintain(self) -> None:
        if self.is_sound():
            maintained(self.directory, "iceberg")

    def expire_taken(self) -> None:
        """Expire what was taken back, as another program does."""
        lineage = set(History(opened(self.directory).handle.metadata, "db.orders").lineage())
        gone = [each for each in snapshots(self.directory) if each not in lineage]
        if gone:
            expire(self.directory, *gone)


class Appender(Actor):
    """Each record has a row; another program adds rows of its own."""

    def __init__(self, writer: DirectoryWriter, directory: Path, seed: int, wanted: Wanted) -> None:
        super().__init__(writer, directory, seed)
        self.written = list(BOTH)
        open_in(directory, "iceberg", wanted=wanted)
        append_foreign_row(directory, "iceberg")

    def acts(self) -> list[Callable[[], Any]]:
        return [*super().acts(), partial(append_foreign_row, self.directory, "iceberg")]

    def rows(self) -> list[tuple[int, int]]:
        return [row for row in offsets_in(self.directory, "iceberg") if row != (7, 7)]

    def is_sound(self) -> bool:
        return self.rows() == [(number, at) for number, end in sorted(self.stored().items()) for at in range(end)]

    def is_complete(self) -> bool:
        return self.rows() == sorted(self.written)

    def write(self) -> None:
        self.written.extend((0, self.writer.next_offset + at) for at in range(5))
        self.writer.segment([b"z"] * 5)

    def run(self, **how: Any) -> None:
        copied(open_in(self.directory, "iceberg"), options_of(self.writer, **how))


class Upserter(Actor):
    """Each key has a row."""

    writer: KeyedWriter

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(KeyedWriter(directory / "data"), directory, seed)
        open_in(directory, "iceberg")
        append_nothing(directory)
        self.write()

    def is_sound(self) -> bool:
        end = self.stored().get(0, 0)
        newest = {key: (at, value) for at, (key, value) in enumerate(self.writer.records[:end]) if key is not None}
        model: Model = {(0, key): (at, value) for key, (at, value) in newest.items() if value is not None}
        return model_in(self.directory, "iceberg") == model

    def is_complete(self) -> bool:
        return model_in(self.directory, "iceberg") == self.writer.model

    def write(self) -> None:
        keys = [b"k%d" % self.choose.randrange(12) for _ in range(10)]
        self.writer.add(*((key, b"v%d" % at) for at, key in enumerate(keys)))

    def run(self, **how: Any) -> None:
        upserted(open_in(self.directory, "iceberg"), self.writer, **how)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.interop) for seed in range(1, 6))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("wanted", [NOTHING_WANTED, wanted_of(["partition"], [])], ids=["plain", "partitioned"])
def test_each_offset_is_there_once_in_the_end(
    writer: DirectoryWriter, tmp_path: Path, wanted: Wanted, seed: int
) -> None:
    _acted(Appender(writer, tmp_path, seed, wanted))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_key_has_its_newest_row_in_the_end(tmp_path: Path, seed: int) -> None:
    _acted(Upserter(tmp_path, seed))


def _acted(actor: Actor) -> None:
    for _ in range(25):
        actor.act()
    actor.copy()
    assert audited(actor.directory, "iceberg", options_of(actor.writer)).findings == []
