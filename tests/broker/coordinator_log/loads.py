"""Shards that keep what a log loads, by partition."""

import trio

from warmlog.broker.coordinator_log.replay import Replay
from warmlog.broker.coordinator_log.term import Term


class Loads:
    """Keeps the keys of each partition; a load waits while it is `held`."""

    def __init__(self, *, is_good: bool = True) -> None:
        self.is_good = is_good
        self.held = trio.Event()
        self.held.set()
        self.keys: dict[int, set[bytes]] = {}
        self.events: list[str] = []

    def hold(self) -> None:
        self.held = trio.Event()

    def begin(self, term: Term) -> None:
        self.keys[term.index] = set()
        self.events.append(f"begin {term.index}")

    async def load(self, term: Term, replay: Replay) -> bool:
        self.events.append(f"load {term.index}")
        await self.held.wait()
        self.keys[term.index] = set(replay.latest)
        return self.is_good

    def end(self, term: Term) -> None:
        del self.keys[term.index]
        self.events.append(f"end {term.index}")
