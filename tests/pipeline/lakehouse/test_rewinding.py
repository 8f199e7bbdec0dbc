"""A rewind that is killed, or whose commit fails or is overtaken, is repeated without harm."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.delta.restored import delta
from tests.pipeline.lakehouse.iceberg.rolled import roll_back, snapshots
from tests.pipeline.lakehouse.tables import AnyTable, Kind, copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.test_exactly_once import (
    BOTH,
    KilledError,
    Killer,
    append_foreign_row,
    iceberg_table,
)
from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.rewinding import Rewound, rewind
from warmlog.pipeline.lakehouse.table import OutcomeUnknownError, RefusedError
from warmlog.pipeline.lakehouse.taken_back import TakenBack

ALL = [(0, 60, 0), (1, 30, 0)]


def take_back(directory: Path, kind: Kind) -> None:
    """Take all rows of the topic back."""
    if kind == "delta":
        delta(directory).restore(1)
    else:
        roll_back(directory, 0)


def bring_back(directory: Path, kind: Kind) -> None:
    if kind == "delta":
        delta(directory).restore(6)
    else:
        roll_back(directory, 5)


def commits(directory: Path, kind: Kind) -> int:
    return delta(directory).version() if kind == "delta" else len(snapshots(directory))


@pytest.fixture
def taken(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> DirectoryWriter:
    """A table whose five commits were taken back."""
    open_in(tmp_path, kind)
    append_foreign_row(tmp_path, kind)
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    take_back(tmp_path, kind)
    return writer


class Interrupted:
    """A table whose next commits are interrupted by `steps`; then commits succeed. `at` is called at other steps."""

    def __init__(
        self, table: AnyTable, *steps: Callable[[Callable[[], None]], None], at: Callable[[str], None] = lambda _: None
    ) -> None:
        self._table = table
        self._steps = list(steps)
        self._at = at

    def refresh(self) -> None:
        self._at("before refresh")
        self._table.refresh()
        self._at("after refresh")

    def taken_back(self) -> TakenBack | None:
        return self._table.taken_back()

    def holds(self, receipt: Receipt) -> bool:
        self._at("before holds")
        return self._table.holds(receipt)

    def accept(self, taken: TakenBack, receipt: Receipt) -> None:
        self._at("before commit")
        if self._steps:
            self._steps.pop(0)(lambda: self._table.accept(taken, receipt))
        else:
            self._table.accept(taken, receipt)
        self._at("after commit")


def interrupted(directory: Path, kind: Kind, *steps: Callable[[Callable[[], None]], None]) -> Interrupted:
    return Interrupted(open_in(directory, kind, ()), *steps)


def failing(error: Exception, *, landed: bool) -> Callable[[Callable[[], None]], None]:
    def step(commit: Callable[[], None]) -> None:
        if landed:
            commit()
        raise error

    return step


def rewound(directory: Path, kind: Kind) -> list[tuple[int, int, int | None]]:
    done = rewind(open_in(directory, kind, ()), pause=lambda _: None)
    return [(each.partition, each.before, each.after) for each in done]


def check_all_are_copied(writer: DirectoryWriter, directory: Path, kind: Kind) -> None:
    assert rewound(directory, kind) == []
    copied(open_in(directory, kind), options_of(writer))
    assert [row for row in offsets_in(directory, kind) if row != (7, 7)] == BOTH
    assert audited(directory, kind, options_of(writer)).findings == []


def test_killed_at_each_step_it_is_repeated(taken: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    killed = []
    for steps in range(10):
        killer = Killer(steps)
        with suppress(KilledError):
            rewind(Interrupted(open_in(tmp_path, kind, ()), at=killer))
            break
        killed.append(killer.name)
        assert rewound(tmp_path, kind) == ([] if killer.name == "after commit" else ALL)
        bring_back(tmp_path, kind)
        assert rewound(tmp_path, kind) == [(0, 0, 60), (1, 0, 30)]
        take_back(tmp_path, kind)
    assert killed == ["before refresh", "after refresh", "before commit", "after commit"]
    check_all_are_copied(taken, tmp_path, kind)


def test_killed_before_the_catalog_has_its_commit_it_is_repeated(
    writer: DirectoryWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot's files are left."""
    open_in(tmp_path, "iceberg")
    append_foreign_row(tmp_path, "iceberg")
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    roll_back(tmp_path, 0)
    before = sorted(tmp_path.rglob("snap-*.avro"))
    with monkeypatch.context() as killing, pytest.raises(KilledError):
        killing.setattr(type(iceberg_table(tmp_path).catalog), "commit_table", _killed)
        rewound(tmp_path, "iceberg")
    assert len(sorted(tmp_path.rglob("snap-*.avro"))) == len(before) + 1
    assert rewound(tmp_path, "iceberg") == ALL
    check_all_are_copied(writer, tmp_path, "iceberg")


def _killed(*_: object, **__: object) -> None:
    raise KilledError


@pytest.mark.parametrize("landed", [False, True])
def test_one_whose_answer_is_lost_is_made_once(
    taken: DirectoryWriter, kind: Kind, tmp_path: Path, landed: bool
) -> None:
    before = commits(tmp_path, kind)
    table = interrupted(tmp_path, kind, failing(OutcomeUnknownError("lost"), landed=landed))
    assert len(rewind(table, pause=lambda _: None)) == 2
    assert commits(tmp_path, kind) == before + 1
    check_all_are_copied(taken, tmp_path, kind)


def test_one_whose_catalog_is_down_after_its_commit_is_made_once(
    taken: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    failures = iter([None, UnavailableError("the catalog is down"), UnavailableError("still down"), None])

    def at(name: str) -> None:
        failure = next(failures, None) if name == "before refresh" else None
        if failure is not None:
            raise failure

    before = commits(tmp_path, kind)
    lost = failing(OutcomeUnknownError("lost"), landed=True)
    assert len(rewind(Interrupted(open_in(tmp_path, kind, ()), lost, at=at), pause=lambda _: None)) == 2
    assert commits(tmp_path, kind) == before + 1
    check_all_are_copied(taken, tmp_path, kind)


def test_one_that_another_commit_overtakes_is_repeated(taken: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    def step(commit: Callable[[], None]) -> None:
        append_foreign_row(tmp_path, kind)
        commit()

    assert len(rewind(interrupted(tmp_path, kind, step), pause=lambda _: None)) == 2
    check_all_are_copied(taken, tmp_path, kind)


def test_one_that_another_restore_overtakes_sees_it(taken: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    def step(commit: Callable[[], None]) -> None:
        bring_back(tmp_path, kind)
        commit()

    assert rewind(interrupted(tmp_path, kind, step), pause=lambda _: None) == []
    check_all_are_copied(taken, tmp_path, kind)


def test_two_at_a_time_make_one_commit(taken: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    done: list[list[Rewound]] = []

    def step(commit: Callable[[], None]) -> None:
        done.append(rewind(open_in(tmp_path, kind, ())))
        commit()

    assert rewind(interrupted(tmp_path, kind, step), pause=lambda _: None) == []
    assert [len(each) for each in done] == [2]
    check_all_are_copied(taken, tmp_path, kind)


def test_one_that_a_job_overtakes_after_another_rewind_changes_nothing(
    taken: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    def step(commit: Callable[[], None]) -> None:
        rewind(open_in(tmp_path, kind, ()))
        copied(open_in(tmp_path, kind), options_of(taken))
        commit()

    assert rewind(interrupted(tmp_path, kind, step), pause=lambda _: None) == []
    check_all_are_copied(taken, tmp_path, kind)


def test_one_that_is_refused_ends_at_once_unless_it_is_there(
    taken: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    pauses: list[float] = []
    for landed in (False, True):
        table = interrupted(tmp_path, kind, failing(RefusedError("no permission"), landed=landed))
        if landed:
            assert len(rewind(table)) == 2
        else:
            with pytest.raises(PipelineError, match="no permission"):
                rewind(table, pause=pauses.append)
    assert pauses == []
    check_all_are_copied(taken, tmp_path, kind)
