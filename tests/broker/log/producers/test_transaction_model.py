"""Random transactions on a log against a list: what is committed, and where the last stable offset is."""

from pathlib import Path
from random import Random

import pytest

from tests.broker.log.producers.transactions import NOW_MS, committed, marker, opened, transactional
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import Origin
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.markers import Outcome

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, segment_index_bytes=4096)
PRODUCERS = (7, 8, 9)
BATCH = tuple[int, int, int, Outcome | None]  # first and last offset, producer (-1: none), outcome of a marker


class Model:
    """The batches of a log."""

    def __init__(self) -> None:
        self.batches: list[BATCH] = []

    def open(self) -> dict[int, list[BATCH]]:
        """The batches of each open transaction."""
        found: dict[int, list[BATCH]] = {}
        for batch in self.batches:
            if batch[3] is not None:
                found.pop(batch[2], None)
            elif batch[2] >= 0:
                found.setdefault(batch[2], []).append(batch)
        return found

    def committed(self) -> list[int]:
        """The offsets that a consumer of committed records keeps."""
        void: set[BATCH] = set()
        pending: dict[int, list[BATCH]] = {}
        for batch in self.batches:
            if batch[3] is not None:
                ended = pending.pop(batch[2], [])
                void |= {*ended} if batch[3] is Outcome.ABORT else set()
                void.add(batch)
            elif batch[2] >= 0:
                pending.setdefault(batch[2], []).append(batch)
        end = self.stable()
        kept = [batch for batch in self.batches if batch not in void and batch[0] < end]
        return [offset for batch in kept for offset in range(batch[0], batch[1] + 1)]

    def end(self) -> int:
        return self.batches[-1][1] + 1 if self.batches else 0

    def stable(self) -> int:
        return min((batches[0][0] for batches in self.open().values()), default=self.end())


def step(log: PartitionLog, model: Model, random: Random, directory: Path) -> PartitionLog:
    """Do something to the log and its model; return the log, which may have been opened again."""
    verb = random.choices(
        ["transact", "plain", "mark", "roll", "flush", "truncate", "restart", "kill"], [8, 3, 5, 1, 1, 1, 1, 1]
    )[0]
    producer, count = random.choice(PRODUCERS), random.randint(1, 4)
    if verb == "transact":
        guard = log.producers.guards.open(producer)
        planned = log.appends.append(transactional(producer, 0, count), origin=Origin.COORDINATOR, guard=guard)
        model.batches.append((planned.base_offset, planned.last_offset, producer, None))
    elif verb == "plain":
        planned = log.appends.append(build_batch([(NOW_MS, None, b"v" * 20, ())] * count))
        model.batches.append((planned.base_offset, planned.last_offset, -1, None))
    elif verb == "mark":
        outcome = random.choice(list(Outcome))
        planned = log.appends.append_marker(marker(producer, outcome))
        model.batches.append((planned.base_offset, planned.last_offset, producer, outcome))
    elif verb == "roll":
        log.rolls.roll()
    elif verb == "flush":
        log.durability.flush()
    elif verb == "truncate":
        target = max(0, log.offsets.log_end_offset - random.randint(0, 12))
        log.truncation.truncate_to(target)
        model.batches = [batch for batch in model.batches if batch[1] < target]
    elif verb == "restart":
        log.close()
        log = opened(directory, CONFIG, recovery_point=log.durability.recovery_point)
    else:
        point = random.choice([0, log.durability.recovery_point])
        log.close(clean=False)
        log = opened(directory, CONFIG, clean=False, recovery_point=point)
    return log


@pytest.mark.parametrize("seed", range(25))
def test_committed_reads_are_those_of_the_model(tmp_path: Path, seed: int) -> None:
    random, model, directory = Random(seed), Model(), tmp_path / "words-0"
    log = opened(directory, CONFIG)
    for _ in range(60):
        log = step(log, model, random, directory)
        assert log.offsets.log_end_offset == model.end()
        assert log.offsets.last_stable_offset == model.stable()
        assert dict(log.producers.open_transactions) == {
            producer: batches[0][0] for producer, batches in model.open().items()
        }
        assert committed(log, random.choice([1, 300, 1 << 20])) == model.committed()
    log.close()
