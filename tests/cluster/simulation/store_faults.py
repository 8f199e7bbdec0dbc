"""Faults between one simulated broker and the store."""

from random import Random

import trio

from broker.cluster.memory import Faults
from broker.cluster.store import StoreUnavailableError

CALL_TIMEOUT_S = 1.0


class StoreFaults(Faults):
    """What lies between one broker and the store."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.is_away = False
        self.rate = 0.0  # of failed calls, lost answers and broken watches
        self.lag_s = 0.002  # on average

    def heal(self) -> None:
        """Do no harm any more."""
        self.is_away, self.rate, self.lag_s = False, 0.0, 0.002

    def late_s(self) -> float | None:
        """Return after which time a transaction whose caller has given up takes effect, or None."""
        return self._random.choice([None, None, 0.1, 1.0, 5.0])

    async def before(self) -> None:
        """Delay or fail a call."""
        await self._pass("the store cannot be reached")

    async def after(self) -> None:
        """Delay or lose an answer."""
        await self._pass("the answer was lost")

    async def before_changes(self) -> None:
        """Delay or lose reports of changes."""
        await self._pass("the watch was reset")

    async def _pass(self, message: str) -> None:
        await trio.sleep(self._random.expovariate(1 / self.lag_s))
        if self.is_away:
            await trio.sleep(CALL_TIMEOUT_S)
        if self.is_away or self._random.random() < self.rate:
            raise StoreUnavailableError(message)
