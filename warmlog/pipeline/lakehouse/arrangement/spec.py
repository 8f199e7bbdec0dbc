"""The arrangement of a table: terms by which files are partitioned, and by which rows of a file are sorted.

    partition                  a column
    day(timestamp)             also year, month and hour
    bucket(16, key)            a hash, for Iceberg only
    truncate(4, key)           the first characters or bytes, or a number rounded down, for Iceberg only

Source: the Iceberg specification, "Partition Transforms"; values are the same for Delta tables, in UTC.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from warmlog.pipeline.errors import PipelineError

Transform: TypeAlias = Literal["identity", "year", "month", "day", "hour", "bucket", "truncate"]

OF_TIMES: tuple[Transform, ...] = ("year", "month", "day", "hour")
WITH_NUMBER: tuple[Transform, ...] = ("bucket", "truncate")
MAX_NUMBER = (1 << 31) - 1
SUFFIXES = {"bucket": "bucket", "truncate": "trunc"}
FORMS = "COLUMN, year(COLUMN), month(COLUMN), day(COLUMN), hour(COLUMN), bucket(N, COLUMN) or truncate(N, COLUMN)"


@dataclass(frozen=True, slots=True)
class Term:
    """A column, or a transform of it. `number`: buckets, or the width of `truncate`; 0 for others."""

    column: str
    transform: Transform = "identity"
    number: int = 0

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({f'{self.number}, ' if self.number else ''}{self.column})"

    @property
    def name(self) -> str:
        """The name of its partition field, as Iceberg's libraries choose it."""
        if self.transform == "identity":
            return self.column
        suffix = SUFFIXES.get(self.transform, self.transform)
        return f"{self.column}_{suffix}{f'_{self.number}' if self.number else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SortField:
    """A term of the order of rows."""

    term: Term
    descending: bool = False
    nulls_last: bool = False

    def __str__(self) -> str:
        order = f"{self.term} desc" if self.descending else str(self.term)
        return f"{order} nulls last" if self.nulls_last and not self.descending else order


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """A term by which files are partitioned, and its name in the table.

    `column`: in a Delta table, the type of the partition column, as Arrow's text; empty in an Iceberg table.
    """

    term: Term
    name: str
    column: str = ""


BOUNDED = ("topic", "partition", "offset", "timestamp")  # columns whose bounds are recorded for each file


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How rows are arranged: by partitions, and sorted in each file.

    `bounded`: columns of whose values the log of a Delta table has the least and greatest in each file.
    """

    partition: tuple[PartitionField, ...] = ()
    sort: tuple[SortField, ...] = field(default=())
    bounded: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether rows are in files in the order in which they are read."""
        return not self.partition and not self.sort


PLAIN = Arrangement()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The arrangement that a user chose for a new table; empty if none."""

    partition: tuple[Term, ...] = ()
    sort: tuple[Term, ...] = ()

    def check(self, name: str, partition: Sequence[object], sort: Sequence[object]) -> None:
        """Raise PipelineError if an existing table has another arrangement. Terms are compared by their texts."""
        for option, chosen, actual, what in (
            ("--partition-by", self.partition, partition, "partitioned"),
            ("--sort-by", self.sort, sort, "sorted"),
        ):
            if chosen and [str(term) for term in chosen] != [str(term) for term in actual]:
                raise PipelineError(
                    f"{name} exists and is {what} by {listed(actual)}, not by {listed(chosen)}: leave out {option}, or"
                    " name a new table"
                )


NOTHING_WANTED = Wanted()


def wanted_of(partition: Iterable[str], sort: Iterable[str]) -> Wanted:
    """Parse the options --partition-by and --sort-by: lists of terms, separated by commas. Raises PipelineError."""
    terms = [term for text in partition for term in _terms("--partition-by", text)]
    order = [term for text in sort for term in _terms("--sort-by", text)]
    for option, chosen in (("--partition-by", terms), ("--sort-by", order)):
        for term in chosen:
            if chosen.count(term) > 1:
                raise PipelineError(f"{option} names {term} twice")
    for term in order:
        if term.transform != "identity":
            raise PipelineError(f"--sort-by sorts by columns, and {term} is none: --sort-by {term.column}")
    names = [term.name for term in terms]
    for term in terms:
        if names.count(term.name) > 1:
            raise PipelineError(f"--partition-by: two partition fields would have the name {term.name}")
    return Wanted(partition=tuple(terms), sort=tuple(order))


def listed(terms: Iterable[object]) -> str:
    """Return terms as text; `nothing` if there are none."""
    return ", ".join(map(str, terms)) or "nothing"


def _terms(option: str, text: str) -> list[Term]:
    parts = re.split(r",(?![^()]*\))", text)  # commas outside of parentheses
    return [_term(option, part.strip()) for part in parts]


def _term(option: str, text: str) -> Term:
    if re.fullmatch(r"[^(),]+", text):
        return Term(text)
    match = re.fullmatch(r"(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*\)", text)
    if match is not None:
        transform, number, column = match[1].lower(), match[2], match[3]
        for known in (*OF_TIMES, *WITH_NUMBER):
            if transform == known and (number is not None) == (known in WITH_NUMBER):
                value = int(number or 0)
                if number is not None and not 0 < value <= MAX_NUMBER:
                    raise PipelineError(f"{option}: {text} needs a number from 1 to {MAX_NUMBER:,}")
                return Term(column, known, value)
    raise PipelineError(f"{option}: {text!r} is none of {FORMS}")
