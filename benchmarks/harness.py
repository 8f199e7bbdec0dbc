"""Rounds, medians, ratios: how a measurement is made, whatever it measures.

Owns: the order in which contestants take their turns, and the statistics. Must not know: what a contestant is beyond
its name, what a workload does, how results are shown.

1. All contestants of a workload are measured in every round, one after the other, on the same machine in the same run:
   a machine's mood (neighbours, heat, dirty pages) falls on all of them. Only their ratios travel to another machine.
2. A contestant gets a fresh directory for each measurement, and it is removed before the next one begins.
3. A ratio is the median of the ratios within the rounds, so that a mood that lasts for a round cancels out.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

Figures = Mapping[str, float]  # what one measurement gives: values by name, the unit in the name
C = TypeVar("C", bound="Named")


class Named:
    """Something that takes part in a workload. `name` is how tables call it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Under which a measurement is made: its length, its directory (empty, on the disk that is measured).

    `kept` is a directory that lasts over all rounds of a workload, for what is dear to make. `scale` shrinks what has a
    number of its own, such as 1,000 partitions, for a quick look.
    """

    seconds: float
    warmup_s: float
    scale: float
    directory: Path
    kept: Path

    def scaled(self, count: int) -> int:
        """`count`, or less of it for a quick look, but never nothing."""
        return max(1, round(count * self.scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is wanted of the first contestant: of its own figure, or of the ratio to another one's (`against`).

    Of the median; or of `every_round`, for a promise that is not one on the average.
    """

    figure: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    every_round: bool = False

    def is_met(self, value: float) -> bool:
        """Whether a figure or ratio is what is wanted."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def is_met_by(self, spread: "Spread") -> bool:
        """The same of what all rounds gave."""
        if self.every_round:
            return self.is_met(spread.minimum) and self.is_met(spread.maximum)
        return self.is_met(spread.median)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Generic[C]):
    """A thing to measure, the same for all contestants; the first one is what it is all about.

    `figures`: those that the table shows, of all that a measurement gives.
    """

    name: str
    title: str
    figures: tuple[str, ...]
    contestants: tuple[C, ...]
    measure: Callable[[C, Conditions], Figures]
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The middle and the ends of some values."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises ValueError where there are none."""
        return cls(median=median(values), minimum=min(values), maximum=max(values))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a workload's rounds gave: for each contestant one Figures a round."""

    workload: Workload[Any]
    rounds: dict[str, list[Figures]] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """The contestant that it is all about."""
        name: str = self.workload.contestants[0].name
        return name

    def measured(self, contestant: str) -> list[str]:
        """The names of the figures that there are."""
        return list(self.rounds[contestant][0])

    def spread(self, contestant: str, figure: str) -> Spread:
        """A contestant's figure over all rounds."""
        return Spread.of([figures[figure] for figures in self.rounds[contestant]])

    def ratio(self, figure: str, against: str) -> Spread | None:
        """The subject's figure divided by another one's, round by round; None where they do not share it."""
        rounds = zip(self.rounds[self.subject], self.rounds[against], strict=True)
        pairs = [(ours[figure], theirs[figure]) for ours, theirs in rounds if figure in ours and figure in theirs]
        return Spread.of([ours / theirs for ours, theirs in pairs if theirs]) if any(t for _, t in pairs) else None

    def target(self, figure: str, against: str | None) -> Target | None:
        """What is wanted of this figure or ratio, if anything is."""
        return next((t for t in self.workload.targets if (t.figure, t.against) == (figure, against)), None)

    @property
    def meets_targets(self) -> bool:
        """Whether the rounds gave everything that is wanted."""
        return all(map(self.judge, self.workload.targets))

    def judge(self, target: Target) -> bool:
        """Whether the rounds gave what is wanted."""
        if target.against is None:
            return target.is_met_by(self.spread(self.subject, target.figure))
        ratio = self.ratio(target.figure, target.against)
        return ratio is not None and target.is_met_by(ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long and how often. `directory`: where measurements make theirs; it decides which disk is measured.

    `kept`: where what is dear to make stays for other runs; None: it goes with the run.
    """

    rounds: int
    seconds: float
    warmup_s: float
    directory: Path
    scale: float = 1.0
    kept: Path | None = None


def run(workload: Workload[C], plan: Plan, progress: Callable[[str], None] = lambda _: None) -> Outcome:
    """Measure all contestants in turn, round after round. Raises whatever a measurement raises."""
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
    """The directory that lasts over all rounds of a workload."""
    if plan.kept is None:
        with _directory(plan.directory) as path:
            yield path
    else:
        path = plan.kept / name
        path.mkdir(parents=True, exist_ok=True)
        yield path


@contextmanager
def _directory(parent: Path) -> Iterator[Path]:
    """A directory of one's own. Removed at once, while most of it is still in memory: that spares the disk."""
    path = Path(tempfile.mkdtemp(prefix="warmlog-benchmark-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)
