"""Pack small splits into tasks: a task of Spark costs as much as reading some megabytes."""

from collections.abc import Iterator, Sequence

from warmlog.pipeline.source.input import AnySplit
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.planning import Split

TASK_BYTES = 8 << 20  # a task that reads this much takes 0.1 s, twice of what Spark needs to start it
OPEN_BYTES = 128 << 10  # what could be read in the time that a split takes by itself
RECORD_BYTES = 100  # of a record behind a broker, which reports no sizes
LEAST_TASKS = 64  # fewer splits are left alone: rows may cost more to process than to read


def packed(splits: Sequence[AnySplit], options: ReadOptions) -> list[tuple[AnySplit, ...]]:
    """Return the splits of each task, in order: one, or several small ones."""
    least = max(LEAST_TASKS, options.min_partitions or 0)
    if len(splits) <= least or options.max_records_per_partition is not None:
        return [(split,) for split in splits]
    costs = [_cost(split) for split in splits]
    return list(_packs(splits, costs, min(TASK_BYTES, sum(costs) // least)))


def _packs(splits: Sequence[AnySplit], costs: Sequence[int], most: int) -> Iterator[tuple[AnySplit, ...]]:
    pack: list[AnySplit] = []
    taken = 0
    for split, cost in zip(splits, costs, strict=True):
        if pack and taken + cost > most:
            yield tuple(pack)
            pack, taken = [], 0
        pack.append(split)
        taken += cost
    if pack:
        yield tuple(pack)


def _cost(split: AnySplit) -> int:
    if isinstance(split, Split):
        return OPEN_BYTES + split.size
    return OPEN_BYTES + (split.end_offset - split.first_offset) * RECORD_BYTES
