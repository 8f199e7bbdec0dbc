"""Faults between a client and a store in memory, drawn from a seed."""

from random import Random

import trio

from tests.broker.cluster.memory import Faults
from warmlog.broker.cluster.store import StoreUnavailableError


class RandomFaults(Faults):
    """Delays calls and reports of changes, fails them, and loses answers, until `heal` is called."""

    def __init__(self, random: Random, *, rate: float = 0.1) -> None:
        self._random = random
        self._rate = rate

    def heal(self) -> None:
        self._rate = 0.0

    async def before(self) -> None:
        await self._delay()
        self._fail("the store cannot be reached")

    async def after(self) -> None:
        await self._delay()
        self._fail("the answer was lost")

    async def before_changes(self) -> None:
        await self._delay()
        self._fail("the watch was reset")

    async def _delay(self) -> None:
        is_slow = self._random.random() < self._rate
        await trio.sleep(self._random.expovariate(0.5 if is_slow else 100) if self._rate else 0)

    def _fail(self, message: str) -> None:
        if self._random.random() < self._rate:
            raise StoreUnavailableError(message)
