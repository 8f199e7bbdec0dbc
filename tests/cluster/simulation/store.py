"""A simulated broker's client of the store in memory, and the faults between the two."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from random import Random
from unittest.mock import patch

import trio

import warmlog.broker.cluster_start
import warmlog.broker.clustered
from tests.broker.cluster.memory import Faults, MemoryCluster, MemoryStore
from tests.cluster.simulation.network import MACHINE, Network
from warmlog.broker.cluster.store import KnownStore, LeaseExpiredError, Outcome, StoreTransaction, StoreUnavailableError
from warmlog.broker.replication.peers import peer_socket

CLUSTER = "simulated"
CALL_TIMEOUT_S = 1.0
STEP_S = 0.02  # between two looks whether a fault has ended


class StoreFaults(Faults):
    """What lies between one broker and the store."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.is_away = False
        self.is_blind = False  # changes are not reported
        self.holds_transactions = False  # until this ends, and then they take effect
        self.held = 0  # since that began
        self.rate = 0.0  # of failed calls, lost answers and broken watches
        self.lag_s = 0.002  # on average

    def heal(self) -> None:
        """Do no harm any more."""
        self.is_away = self.is_blind = self.holds_transactions = False
        self.rate, self.lag_s, self.held = 0.0, 0.002, 0

    async def before_transaction(self) -> None:
        """Hold up a transaction until its caller gives up."""
        if self.holds_transactions:
            self.held += 1
            await trio.sleep(CALL_TIMEOUT_S)
            raise StoreUnavailableError("no answer from the store")

    async def takes_effect_late(self) -> bool:
        """Wait until a transaction whose caller has given up takes effect; return False if it was lost."""
        if self.holds_transactions:
            while self.holds_transactions:  # noqa: ASYNC110  # simulated time
                await trio.sleep(STEP_S)
            return True
        delay_s = self._random.choice([None, None, 0.1, 1.0, 5.0])
        if delay_s is None:
            return False
        await trio.sleep(delay_s)
        return True

    async def before(self) -> None:
        """Delay or fail a call."""
        await self._pass("the store cannot be reached")

    async def after(self) -> None:
        """Delay or lose an answer."""
        await self._pass("the answer was lost")

    async def before_changes(self) -> None:
        """Delay or lose reports of changes."""
        while self.is_blind:  # noqa: ASYNC110  # simulated time
            await trio.sleep(STEP_S)
        await self._pass("the watch was reset")

    async def _pass(self, message: str) -> None:
        await trio.sleep(self._random.expovariate(1 / self.lag_s))
        if self.is_away:
            await trio.sleep(CALL_TIMEOUT_S)
        if self.is_away or self._random.random() < self.rate:
            raise StoreUnavailableError(message)


class SimulatedStore(MemoryStore):
    """A broker's client of the store in memory, with what `EtcdStore` has besides."""

    def __init__(self, cluster: MemoryCluster, faults: StoreFaults, network: Network) -> None:
        super().__init__(cluster, faults)
        self._contents = cluster
        self._between = faults
        self._network = network

    @property
    def known(self) -> KnownStore:
        """What the broker remembers of the store."""
        return KnownStore(1, CLUSTER, self._contents.revision)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    async def commit(self, transaction: StoreTransaction) -> Outcome:
        """Commit a transaction, which may take effect long after the broker has given up, or is gone."""
        is_pending = True

        def take_effect() -> Outcome:
            nonlocal is_pending
            is_pending = False
            return self._contents.commit(transaction)

        async def take_effect_late() -> None:
            if await self._between.takes_effect_late():
                with suppress(LeaseExpiredError):
                    take_effect()

        try:
            await self._between.before_transaction()
            return await self._call(take_effect)
        finally:
            if is_pending:
                self._network.spawn(take_effect_late)


@contextmanager
def connected(
    contents: MemoryCluster, faults: Mapping[str, StoreFaults], network: Network, random: Random
) -> Iterator[None]:
    """Let brokers use the simulated store and network; `faults` by machine."""

    def store(*_: object, **__: object) -> SimulatedStore:
        return SimulatedStore(contents, faults[MACHINE.get()], network)

    with (
        patch.object(warmlog.broker.cluster_start, "EtcdStore", store),
        patch.object(warmlog.broker.clustered, "Random", lambda: Random(random.random())),
        patch.object(trio, "open_tcp_stream", network.open_tcp_stream),
        patch.object(peer_socket, "connect", network.open_tcp_stream),
    ):
        yield
