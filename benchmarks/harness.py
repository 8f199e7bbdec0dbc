"""Rounds, medians and ratios of any measurement.

1. All contestants of a workload are measured in every round, one after the other, on the same machine in the same run,
   so that disturbances (other load, heat, dirty pages) affect all of them. Only ratios are comparable between machines.
2. A contestant gets a new directory for each measurement, which is removed before the next one begins.
3. A ratio is the median of the ratios within the rounds, so that a disturbance that lasts for a round cancels out.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

Figures = Mapping[str, float]  # result of one measurement: values by name, with the unit in the name
C = TypeVar("C", bound="Named")


class Named:
    """A contestant of a workload, with its name in tables."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a measurement: length and directory (empty, on the measured disk).

    `kept` is a directory that exists for all rounds of a workload, for data that is expensive to create. `scale`
    reduces numbers such as 1,000 partitions for a quick run.
    """

    seconds: float
    warmup_s: float
    scale: float
    directory: Path
    kept: Path

    def scaled(self, count: int) -> int:
        """Return `count`, reduced for a quick run, but at least 1."""
        return max(1, round(count * self.scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target for the first contestant's figure, or for its ratio to another contestant's (`against`).

    It applies to the median, or with `every_round` to each round.
    """

    figure: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    every_round: bool = False

    def is_met(self, value: float) -> bool:
        """Return whether a figure or ratio meets the target."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def is_met_by(self, spread: "Spread") -> bool:
        """Return whether the figures of all rounds meet the target."""
        if self.every_round:
            return self.is_met(spread.minimum) and self.is_met(spread.maximum)
        return self.is_met(spread.median)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Generic[C]):
    """A measurement, the same for all contestants; the first one is the subject.

    `figures`: the figures that the table shows.
    """

    name: str
    title: str
    figures: tuple[str, ...]
    contestants: tuple[C, ...]
    measure: Callable[[C, Conditions], Figures]
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, minimum and maximum of some values."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Compute the spread. Raises ValueError if there are no values."""
        return cls(median=median(values), minimum=min(values), maximum=max(values))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a workload: for each contestant, the figures of each round."""

    workload: Workload[Any]
    rounds: dict[str, list[Figures]] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """The first contestant, the subject of the workload."""
        name: str = self.workload.contestants[0].name
        return name

    def measured(self, contestant: str) -> list[str]:
        """Return the names of the measured figures."""
        return list(self.rounds[contestant][0])

    def spread(self, contestant: str, figure: str) -> Spread:
        """Return a contestant's figure over all rounds."""
        return Spread.of([figures[figure] for figures in self.rounds[contestant]])

    def ratio(self, figure: str, against: str) -> Spread | None:
        """Divide the subject's figure by another contestant's, per round; None if one of them does not have it."""
        rounds = zip(self.rounds[self.subject], self.rounds[against], strict=True)
        pairs = [(ours[figure], theirs[figure]) for ours, theirs in rounds if figure in ours and figure in theirs]
        return Spread.of([ours / theirs for ours, theirs in pairs if theirs]) if any(t for _, t in pairs) else None

    def target(self, figure: str, against: str | None) -> Target | None:
        """Return the target of this figure or ratio, if any."""
        return next((t for t in self.workload.targets if (t.figure, t.against) == (figure, against)), None)

    @property
    def meets_targets(self) -> bool:
        """Return whether all targets are met."""
        return all(map(self.judge, self.workload.targets))

    def judge(self, target: Target) -> bool:
        """Return whether a target is met."""
        if target.against is None:
            return target.is_met_by(self.spread(self.subject, target.figure))
        ratio = self.ratio(target.figure, target.against)
        return ratio is not None and target.is_met_by(ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Length and number of rounds. `directory`: parent of all directories; it decides which disk is measured.

    `kept`: directory of expensive data, for use by later runs; if None, the data is removed after the run.
    """

    rounds: int
    seconds: float
    warmup_s: float
    directory: Path
    scale: float = 1.0
    kept: Path | None = None


def run(workload: Workload[C], plan: Plan, progress: Callable[[str], None] = lambda _: None) -> Outcome:
    """Measure all contestants alternately, round after round. Raises whatever a measurement raises."""
    outcome = Outcome(workload, {contestant.name: [] for contestant in workload.contestants})
    with _kept(workload.name, plan) as kept:
        for number in range(plan.rounds):
            for contestant in workload.contestants:
                progress(f"{workload.name}: round {number + 1} of {plan.rounds}, {contestant.name}")
                outcome.rounds[contestant.name].append(_measure(workload, contestant, plan, kept))
    return outcome


def _measure(workload: Workload[C], contestant: C, plan: Plan, kept: Path) -> Figures:
    with _directory(plan.directory) as directory:
        conditions = Conditions(
            seconds=plan.seconds, warmup_s=plan.warmup_s, scale=plan.scale, directory=directory, kept=kept
        )
        return workload.measure(contestant, conditions)


@contextmanager
def _kept(name: str, plan: Plan) -> Iterator[Path]:
    """Yield the directory that exists for all rounds of a workload."""
    if plan.kept is None:
        with _directory(plan.directory) as path:
            yield path
    else:
        path = plan.kept / name
        path.mkdir(parents=True, exist_ok=True)
        yield path


@contextmanager
def _directory(parent: Path) -> Iterator[Path]:
    """Yield a new directory; then remove it immediately, while most of it is dirty, to avoid writing it to the disk."""
    path = Path(tempfile.mkdtemp(prefix="warmlog-benchmark-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)
