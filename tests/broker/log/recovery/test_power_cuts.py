"""A log on a disk that fails, or loses its power, at every single step of what a broker does with it.

The machine is cut off at the nth change it makes to the disk, for every n; what is durable by then, and any part of
what is not (`crashing_disk`), is what the next start finds. Then that start is cut off, too.

The suite takes every step for a crash (of some scenarios every fourth) and every fifth for other faults. A longer run,
of every step for everything and of so many random lives from a seed on:

    export WARMLOG_FAULT_STRIDE=1 WARMLOG_FAULT_LIVES=5000 WARMLOG_FAULT_SEED=7
    pytest tests/broker/log/recovery/test_power_cuts.py
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import mkdtemp
from typing import NamedTuple

import pytest

from tests.broker.log.io.crashing_disk import FAULTS, Fault, MachineGone
from tests.broker.log.recovery.copied_logs import with_transactions, written_by_kafka
from tests.broker.log.recovery.ledger import Ledger, Stored
from tests.broker.log.recovery.machine import Machine
from warmlog.broker.log.errors import LogError
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.markers import Outcome

Step = Callable[[Machine], object]

QUICK = {"crash after", "EIO"}  # examples for `make test`
STRIDE = int(os.environ.get("WARMLOG_FAULT_STRIDE", "5"))
LIVES = int(os.environ.get("WARMLOG_FAULT_LIVES", "30"))
SEED = int(os.environ.get("WARMLOG_FAULT_SEED", "1"))


def append(count: int = 1, size: int = 40) -> Step:
    return lambda machine: machine.append(count, size)


def truncate(back: int) -> Step:
    return lambda machine: machine.truncate(back)


def transact(producer_id: int, count: int = 1) -> Step:
    return lambda machine: machine.transact(producer_id, count)


def abort(producer_id: int) -> Step:
    return lambda machine: machine.end_transaction(producer_id, Outcome.ABORT)


def commit(producer_id: int) -> Step:
    return lambda machine: machine.end_transaction(producer_id, Outcome.COMMIT)


def compact_little(machine: Machine) -> None:
    """As far as an offset map of six keys reaches."""
    machine.compact(entries=6)


def delete_records(count: int) -> Step:
    return lambda machine: machine.delete_records(count)


class Scenario(NamedTuple):
    """Steps over a log; `copied` puts one there first and gives what is in it.

    `stride`: the suite takes each so many of its steps for a crash.
    """

    steps: list[Step]
    compacted: bool = False
    copied: Callable[[Path], list[Stored]] | None = None
    stride: int = 1

    def machine(self, root: Path) -> Machine:
        """Where it begins, switched off."""
        ledger = Ledger(compacted=self.compacted)
        if self.copied is not None:
            root.mkdir()
            ledger.were_copied(self.copied(root / "words-0"))
        return Machine(root, ledger)


SCENARIOS: dict[str, Scenario] = {
    "append, roll, flush": Scenario(
        [append(), append(3), Machine.flush, *[append(2, 100)] * 5, Machine.checkpoint, append(), Machine.flush,
         Machine.checkpoint, *[append(1, 200)] * 4, Machine.flush, append()],
    ),
    "stop and start": Scenario(
        [*[append(2)] * 5, Machine.restart, append(), append(4, 100), Machine.restart, Machine.restart, append(2, 300),
         Machine.roll, Machine.restart, append()],
    ),
    "truncate": Scenario(
        [*[append(2, 60)] * 9, Machine.flush, Machine.checkpoint, truncate(11), append(3, 90), Machine.flush,
         *[append(2, 60)] * 5, Machine.flush, truncate(2), append(2, 60), Machine.checkpoint],
    ),
    "delete records": Scenario(
        [*[append(2, 80)] * 12, Machine.flush, delete_records(9), append(2), Machine.checkpoint, delete_records(11),
         append(1), delete_records(99), append(2), Machine.flush, append(1)],
    ),
    "delete records of several segments": Scenario(
        [*[append(2, 80)] * 18, Machine.flush, delete_records(26), *[append(2, 80)] * 15, Machine.flush,
         delete_records(20), append(1), Machine.roll, delete_records(99), append(2)],
    ),
    "compact": Scenario(
        [*[append(2, 60)] * 14, Machine.flush, Machine.checkpoint, Machine.compact, *[append(2, 60)] * 6, Machine.flush,
         compact_little, Machine.checkpoint, append(2), Machine.restart, *[append(2, 60)] * 3],
        compacted=True,
    ),
    "tombstones go": Scenario(
        [*[append(3, 60)] * 9, Machine.flush, Machine.compact, Machine.let_time_pass, *[append(1, 60)] * 5,
         Machine.flush, Machine.compact, Machine.restart, append(3), Machine.roll, Machine.flush,
         Machine.let_time_pass, compact_little],
        compacted=True,
        stride=4,
    ),
    "copied, with transactions": Scenario(
        [append(2), truncate(5), append(1), Machine.restart, truncate(9), append(2), delete_records(9), append(1),
         Machine.flush],
        copied=with_transactions,
        stride=4,
    ),
    "transactions": Scenario(
        [transact(8, 2), append(), transact(9), abort(8), Machine.flush, Machine.checkpoint, transact(9), transact(8),
         commit(9), append(2), transact(9, 3), Machine.roll, abort(8), transact(8), Machine.restart, abort(9),
         truncate(3), transact(8), abort(8), Machine.flush, transact(9), delete_records(6), Machine.checkpoint,
         abort(9), commit(8), append(1)],
        stride=2,
    ),
    "transactions, compacted": Scenario(
        [transact(8, 3), append(2), transact(9, 2), abort(8), *[append(2, 60)] * 4, commit(9), Machine.flush,
         Machine.compact, transact(8, 2), *[append(2, 60)] * 4, Machine.flush, Machine.compact, abort(8), Machine.roll,
         append(1), Machine.flush, Machine.let_time_pass, Machine.compact, append(1)],
        compacted=True,
        stride=4,
    ),
    "copied and compacted": Scenario(
        [append(2, 60), Machine.roll, Machine.flush, Machine.compact, Machine.let_time_pass, *[append(2, 90)] * 4,
         Machine.flush, Machine.compact, Machine.let_time_pass, append(1), Machine.roll, Machine.flush, Machine.compact,
         append(1)],
        compacted=True,
        copied=with_transactions,
        stride=4,
    ),
    "copied from Kafka": Scenario(
        [append(2), Machine.restart, truncate(20), append(1), delete_records(12), Machine.flush],
        copied=written_by_kafka,
        stride=4,
    ),
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one: nothing here depends on the disk below, and it is much quicker."""
    memory = Path("/dev/shm")
    root = Path(mkdtemp(dir=memory)) if os.access(memory, os.W_OK) else tmp_path
    yield root
    rmtree(root, ignore_errors=True)


@contextmanager
def started(root: Path, ledger: Ledger) -> Iterator[Machine]:
    machine = Machine(root, ledger)
    try:
        yield machine
    finally:
        machine.end()


def mend(machine: Machine) -> None:
    """As a broker: open a log that has failed anew in place; where that fails, start again."""
    if machine.is_on and machine.log.failed:
        with suppress(OSError, LogError):
            machine.reopen()
            return
    machine.kill()


def play(machine: Machine, steps: list[Step]) -> bool:
    """Run the steps; whether the power stayed on. A log that has failed is opened anew, as after a kill."""
    try:
        machine.start()
        for step in steps:
            try:
                step(machine)
            except (OSError, LogError):
                mend(machine)
    except (OSError, LogError):
        return True  # it did not start: the next one will
    except MachineGone:
        return False
    finally:
        machine.end()
    return True


def cut_power(machine: Machine, root: Path, random: Random, *, journal: bool) -> Path:
    """What is found when the power is back; the old place is cleared."""
    target = root / f"life-{int(machine.disk.root.name.rpartition('-')[2]) + 1}"
    machine.disk.crash(target, random, journal=journal)
    rmtree(machine.disk.root)
    return target


def recover(root: Path, machine: Machine, random: Random, *, journal: bool) -> None:
    """Start again, perhaps cut off in the middle of it, and check what is there; then go on, and check again."""
    ledger = machine.ledger
    where = cut_power(machine, root, random, journal=journal)
    with started(where, ledger) as again:
        again.disk.fail_at(random.randrange(40), "crash after")
        with suppress(MachineGone):
            again.start()
    again.disk.gone = False
    where = cut_power(again, root, random, journal=journal)
    with started(where, ledger) as last:
        last.start()
        last.check()
        last.append(2)
        last.flush()
        last.append(1, 300)
        last.restart()
        assert last.log.recovery is None
        last.check()


def verbs_of(root: Path, scenario: Scenario) -> list[str]:
    """The verbs of every change that it makes to the disk."""
    machine = scenario.machine(root / "dry-0")
    assert play(machine, scenario.steps)
    rmtree(machine.disk.root)
    return [verb for verb, _ in machine.disk.steps]


def is_tried(scenario: Scenario, fault: Fault, nth: int, verb: str) -> bool:
    """Whether this fault can strike there, and is to, in this run."""
    if fault == "crash after":
        return nth % min(scenario.stride, STRIDE) == 0
    verbs = {"short": {"pwritev"}, "ENOSPC": {"pwritev", "open", "truncate", "rename", "sync"}}
    return (fault not in verbs or verb in verbs[fault]) and nth % STRIDE == FAULTS.index(fault) % STRIDE


@pytest.mark.timeout(3600 if STRIDE == 1 else 240)
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize(
    "fault",
    [fault if fault in QUICK else pytest.param(fault, marks=pytest.mark.interop) for fault in FAULTS],
)
def test_every_step_may_fail_or_be_the_last(place: Path, name: str, fault: Fault) -> None:
    scenario = SCENARIOS[name]
    verbs = verbs_of(place, scenario)
    for nth, verb in enumerate(verbs):
        if not is_tried(scenario, fault, nth, verb):
            continue
        random = Random(nth)
        machine = scenario.machine(place / "life-0")
        machine.disk.fail_at(nth, fault)
        try:
            was_on = play(machine, scenario.steps)
            assert was_on is not fault.startswith("crash")
            recover(place, machine, random, journal=nth % 2 == 0)
        except (AssertionError, OSError, LogError, ProtocolError) as error:
            error.add_note(f"{fault} at step {nth} of {name}: {machine.disk.steps[max(0, nth - 5) : nth + 1]}")
            raise
        rmtree(place)
        place.mkdir()


# -- random lives ------------------------------------------------------------------------------------------------------


def any_step(random: Random, *, compacted: bool) -> Step:
    """What a broker may do next; appends most of the time."""
    some = random.randint(1, 15)
    count, size = random.choice([(1, 0), (1, 250), (2, 30), (2, 250), (3, 100), (4, 0), (5, 30), (5, 100)])
    producer = random.choice([8, 9])
    others: list[Step] = [
        transact(producer, count), transact(producer), abort(producer), commit(producer),
        Machine.flush, Machine.flush, Machine.checkpoint, Machine.roll, Machine.restart, Machine.kill,
        lambda machine: machine.append(count, size, idempotent=False),
        *([Machine.compact, compact_little, compact_little, Machine.let_time_pass] if compacted
          else [truncate(some), delete_records(some)]),
    ]  # fmt: skip
    return random.choice([append(count, size)] * len(others) + others)


def live(root: Path, random: Random) -> None:
    """Three lives of one log, each ended by a fault or a power cut somewhere."""
    copied = with_transactions if random.random() < 0.25 else None
    machine = Scenario([], compacted=random.random() < 0.4, copied=copied).machine(root / "life-0")
    ledger = machine.ledger
    for _ in range(3):
        steps = [any_step(random, compacted=ledger.compacted) for _ in range(random.randint(3, 40))]
        machine.disk.fail_at(random.randrange(300), random.choice(FAULTS))
        play(machine, steps)
        where = cut_power(machine, root, random, journal=random.random() < 0.7)
        machine = Machine(where, ledger)
        machine.disk.fail_at(random.randrange(60), "crash after")
        if play(machine, [Machine.check]):
            continue
        where = cut_power(machine, root, random, journal=random.random() < 0.7)
        with started(where, ledger) as machine:
            machine.start()
            machine.check()


@pytest.mark.timeout(120 + LIVES)
def test_lives(place: Path) -> None:
    for seed in range(SEED, SEED + LIVES):
        try:
            live(place, Random(seed))
        except (AssertionError, OSError, LogError, ProtocolError) as error:
            error.add_note(f"seed {seed}")
            raise
        rmtree(place)
        place.mkdir()
