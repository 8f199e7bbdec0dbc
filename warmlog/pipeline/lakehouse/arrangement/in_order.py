"""Read rows of arranged files in the order of offsets, in bounded memory.

Rows of neighbouring offsets may be in many files (by partition), and anywhere in a file (sorted by other columns). So
offsets are divided into ranges whose rows fit into memory, and the rows of a range are read from all files and sorted.
Row groups in the order of offsets are read once; a range begins at the edge of a row group if it can.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

RANGE_BYTES = 32 << 20  # decoded rows of a range, estimated


@dataclass(frozen=True, slots=True)
class GroupSize:
    """Offsets of the wanted rows of a row group (`end` excluded), and an estimate of their bytes, decoded."""

    first: int
    end: int
    bytes: float


def ranges(groups: Iterable[GroupSize], most: float = RANGE_BYTES) -> Iterator[tuple[int, int]]:
    """Yield ranges of offsets (end excluded), in order, that cover the groups and have about `most` bytes each."""
    most *= 1 + 1e-9  # so that rounding does not cut a range short
    changes: dict[int, float] = {}
    for group in groups:
        density = group.bytes / (group.end - group.first)
        changes[group.first] = changes.get(group.first, 0.0) + density
        changes[group.end] = changes.get(group.end, 0.0) - density
    edges = sorted(changes)
    density, held = 0.0, 0.0
    first = edges[0] if edges else 0
    for at, end in pairwise(edges):
        density = max(density + changes[at], 0.0)
        size = density * (end - at)
        if held and held + size > most and held >= most / 2:
            yield first, at
            first, held = at, 0.0
        begin = at
        while held + size > most and end - begin > 1:
            count = min(max(int((most - held) / density), 1), end - begin - 1)
            yield first, begin + count
            begin += count
            first, held, size = begin, 0.0, density * (end - begin)
        held += size
    if edges and first < edges[-1]:
        yield first, edges[-1]


def by_offset(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows of record batches sorted by offset, as record batches."""
    import pyarrow as pa

    tables = [pa.Table.from_batches([batch]) for batch in batches]
    if tables:
        table = pa.concat_tables(tables, promote_options="permissive")
        yield from table.sort_by("offset").combine_chunks().to_batches()
