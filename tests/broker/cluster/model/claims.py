"""What is claimed of a simulated partition, whatever happens to its brokers.

1. A record below a leader's high watermark is in the log of every later leader, unless all members of ISR and ELR have
   lost their copies, at least as many as `min.insync.replicas`; or an unclean election has given it up.
2. No leader epoch has two writers.
3. Two logs with the same epoch at the same offset are the same up to there.
4. No high watermark covers another record than the one that is committed.
"""

from collections.abc import Callable, Iterable, Sequence

from tests.broker.cluster.model.parts import KEY, Broker
from warmlog.broker.cluster import rules
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.values import PartitionState
from warmlog.broker.replication.leading.progress import Progress


class Bad(Exception):  # noqa: N818  # no error of the code under test
    """A claim does not hold."""


class Claims:
    """Remembers what was committed, and which copies were lost."""

    def __init__(self, brokers: Sequence[Broker], min_isr: int) -> None:
        self.committed: dict[int, int] = {}  # values by offset
        self.given_up: set[int] = set()  # values that may be lost
        self.dead: set[int] = set()  # values that the source of a mirror has lost
        self._brokers = brokers
        self._min_isr = min_isr  # now, by the store
        self._epochs: dict[int, int] = {}  # in which a value was committed
        self._copies: dict[int, int] = {}  # how many copies of a value have to be lost before it may be
        self._lost: dict[int, set[int]] = {}  # brokers that have lost their copy of a value
        self._writers: dict[int, int] = {}  # by leader epoch
        self._unclean_epoch = 0  # of the latest unclean election: whoever led before it loses what it commits since

    # -- what leaders do --

    def lead(self, broker: Broker, state: PartitionState) -> None:
        for offset, value in self.committed.items():
            is_later = self._epochs[value] > state.leader_epoch  # the image lags, and others have led meanwhile
            if not is_later and (offset >= len(broker.log) or broker.log[offset][1] != value):
                raise Bad(f"{broker.id} leads in epoch {state.leader_epoch} without {value} at {offset}: {broker.log}")

    def write(self, broker: Broker, epoch: int) -> None:
        if self._writers.setdefault(epoch, broker.id) != broker.id:
            raise Bad(f"{broker.id} writes in epoch {epoch} of {self._writers[epoch]}")

    def commit(self, broker: Broker, progress: Progress, image: ClusterImage) -> None:
        """Record that a leader has advanced its high watermark, though the store may be ahead of its image."""
        if progress.state.leader_epoch < self._unclean_epoch:
            return  # and does not know it
        for offset in range(broker.high_watermark, progress.high_watermark):
            value = broker.log[offset][1]
            if value in self.dead:
                continue
            if self.committed.setdefault(offset, value) != value:
                raise Bad(f"{value} is committed at {offset}, which was {self.committed[offset]}")
            self._epochs.setdefault(value, progress.state.leader_epoch)
            self._copies.setdefault(value, min(progress.min_isr, self._min_isr))
        if progress.state.leader_epoch < image.partitions[KEY].leader_epoch:
            self.give_up_destroyed(image)

    # -- copies --

    def copied(self, broker: Broker, records: Iterable[tuple[int, int]]) -> None:
        for _, value in records:
            self._lost.get(value, set()).discard(broker.id)

    def lose(self, broker: Broker, records: Iterable[tuple[int, int]]) -> None:
        """Count copies as lost."""
        for _, value in records:
            self._lost.setdefault(value, set()).add(broker.id)

    def forgive(self) -> None:
        """Count no copy as lost."""
        self._lost.clear()

    def decided(self, image: ClusterImage, *, is_believed: bool, is_unclean: bool) -> None:
        """Record another state of the partition.

        `is_believed`: its ISR was taken for good. Who has lost records without having registered again is not known.
        """
        state = image.partitions[KEY]
        self._min_isr = rules.min_isr(image, KEY, state)
        self._copies = {value: min(count, self._min_isr) for value, count in self._copies.items()}
        if is_unclean:
            self._unclean_epoch = state.leader_epoch
            self._give_up_all_but([state.leader_id], lambda _: True)
        elif is_believed and all(image.is_good(member) for member in state.isr):
            self.give_up_destroyed(image)

    def give_up_destroyed(self, image: ClusterImage) -> None:
        """Give up the records of which no member of ISR or ELR has a copy any more, if enough copies were lost."""
        state = image.partitions[KEY]
        holders = [member.broker for member in (*state.isr, *state.elr)]
        self._give_up_all_but(holders, lambda value: len(self._lost.get(value, ())) >= self._copies[value])

    def _give_up_all_but(self, holders: Iterable[int], may_be_lost: Callable[[int], bool]) -> None:
        logs = [self._brokers[broker].log for broker in holders]
        for offset, value in list(self.committed.items()):
            if may_be_lost(value) and not any(offset < len(log) and log[offset][1] == value for log in logs):
                self.given_up.add(self.committed.pop(offset))

    # -- at any time --

    def check(self) -> None:
        for broker in self._brokers:
            for other in self._brokers[: broker.id]:
                self._check_pair(broker, other)
            if broker.is_up and not self._unclean_epoch:
                self._check_shown(broker)

    def _check_pair(self, broker: Broker, other: Broker) -> None:
        for offset in range(min(len(broker.log), len(other.log)) - 1, -1, -1):
            if broker.log[offset][0] == other.log[offset][0]:
                if broker.log[: offset + 1] != other.log[: offset + 1]:
                    raise Bad(f"logs differ below one record: {broker.log} {other.log}")
                return

    def _check_shown(self, broker: Broker) -> None:
        for offset, (_, value) in enumerate(broker.log[: broker.high_watermark]):
            if value in self.given_up or value in self.dead:
                return
            if self.committed.get(offset, value) != value:
                raise Bad(f"{broker.id} shows {value} at {offset}, not {self.committed[offset]}")
