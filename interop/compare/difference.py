"""Find the differences between two runs of a scenario, and filter out expected ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from interop.compare.normal import identity
from interop.compare.session import Step

MISSING = "<missing>"
ANY: Any = "<any value>"
ENDED_EARLY = "it ended early"  # label of a step: the scenario could not continue


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs. path: the fields that lead to it; where: the same, including array elements."""

    area: str
    level: str
    step: Step
    path: str
    where: str
    kafka: Any
    warmlog: Any

    def __str__(self) -> str:
        step = f"{self.step.api} {self.step.version}" if self.step.api != "note" else "note"
        what = f"{self.area}/{self.level}: {self.step.label} ({step}): {self.where}"
        return f"{what}: Kafka {self.kafka!r}, warmlog {self.warmlog!r}"


@dataclass(slots=True)
class Expected:
    """A known difference, by patterns (`fnmatch`) for area/label and API.path.

    kafka, warmlog: the differing values; ANY matches all.
    """

    label: str
    path: str
    reason: str
    kafka: Any = ANY
    warmlog: Any = ANY
    matches: int = field(default=0, compare=False)

    def covers(self, difference: Difference) -> bool:
        """Return whether this entry covers the difference."""
        return (
            self.kafka in (ANY, difference.kafka)
            and self.warmlog in (ANY, difference.warmlog)
            and fnmatchcase(f"{difference.area}/{difference.step.label}", self.label)
            and fnmatchcase(f"{difference.step.api}.{difference.path}", self.path)
        )

    def __str__(self) -> str:
        return f"{self.label} {self.path}: {self.reason}"


def differences(area: str, level: str, kafka: Sequence[Step], warmlog: Sequence[Step]) -> list[Difference]:
    """Compare the steps of two runs."""
    found = []
    for theirs, ours in zip(kafka, warmlog, strict=False):
        if theirs.label != ours.label:
            found.append(Difference(area, level, theirs, "step", "step", theirs.label, f"{ours.label}: {ours.answer}"))
            break
        if theirs.label == ENDED_EARLY:  # later steps were not compared and may differ, even if both ended here
            found.append(Difference(area, level, theirs, "step", "step", theirs.answer, ours.answer))
            continue
        for path, where, one, other in _unlike("", "", theirs.answer, ours.answer):
            found.append(Difference(area, level, theirs, path, where, one, other))
    if len(kafka) != len(warmlog) and not any(one.path == "step" for one in found):
        found.append(Difference(area, level, kafka[-1], "steps", "steps", len(kafka), len(warmlog)))
    return found


def unexpected(found: Iterable[Difference], table: Sequence[Expected]) -> list[Difference]:
    """Return the differences that no entry covers, and count the matches of the entries."""
    left = []
    for difference in found:
        covering = [entry for entry in table if entry.covers(difference)]
        for entry in covering:
            entry.matches += 1
        if not covering:
            left.append(difference)
    return left


def _unlike(path: str, where: str, kafka: Any, warmlog: Any) -> Iterator[tuple[str, str, Any, Any]]:
    if isinstance(kafka, dict) and isinstance(warmlog, dict):
        for name in kafka:
            prefix = "." if path else ""
            yield from _unlike(f"{path}{prefix}{name}", f"{where}{prefix}{name}", kafka[name], warmlog[name])
    elif (
        isinstance(kafka, list) and isinstance(warmlog, list) and any(isinstance(one, dict) for one in kafka + warmlog)
    ):
        theirs, ours = _by_identity(kafka), _by_identity(warmlog)
        for key in [*theirs, *[key for key in ours if key not in theirs]]:
            shown = ",".join(key)
            yield from _unlike(path, f"{where}[{shown}]", theirs.get(key, MISSING), ours.get(key, MISSING))
    elif kafka != warmlog:
        yield path, where, kafka, warmlog


def _by_identity(values: list[Any]) -> dict[tuple[str, ...], Any]:
    """Return elements by name, numbered if several have the same name."""
    found: dict[tuple[str, ...], Any] = {}
    for value in values:
        name = identity(value)
        key, number = name, 1
        while key in found:
            number += 1
            key = (*name, f"#{number}")
        found[key] = value
    return found
