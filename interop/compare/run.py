"""Run scenarios against both brokers and collect their differences."""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from interop.compare.difference import ENDED_EARLY, Difference, differences
from interop.compare.scenarios import AREAS
from interop.compare.session import LEVELS, Barrier, Session, Step
from interop.compare.wire import BY_NAME, Connection
from warmlog.protocol.kafka.api import APIS

HOUR_MS = 3_600_000
# Raised by a scenario at a response it cannot continue with.
ENDS = (AssertionError, LookupError, TimeoutError, RuntimeError)


class Pair:
    """The addresses of Kafka and warmlog, and the parameters shared by runs against both."""

    def __init__(self, kafka: str, warmlog: str) -> None:
        self.addresses = (kafka, warmlog)
        self.base_time = int(time.time()) * 1000 - HOUR_MS
        self.barriers = (Barrier(), Barrier())
        self.requests = 0
        self._newest = newest_versions(kafka)

    def compare(self, area: str, level: str) -> list[Difference]:
        """Run a scenario against both concurrently."""
        with ThreadPoolExecutor(2) as pool:
            kafka, warmlog = pool.map(lambda place: self._run(place, area, level), (0, 1))
        self.requests += len(kafka)
        return differences(area, level, kafka, warmlog)

    def session(self, place: int, scenario: str, level: str) -> Session:
        """Return a new session with one broker: 0 is Kafka, 1 is warmlog."""
        return Session(
            self.addresses[place], scenario, level, self.base_time, self.barriers[place], newest=self._newest
        )

    def _run(self, place: int, area: str, level: str) -> list[Step]:
        session = self.session(place, area, level)
        try:
            AREAS[area](session)
        except ENDS as error:
            # A response the scenario cannot continue with.
            session.note(ENDED_EARLY, f"{type(error).__name__}: {error}")
        finally:
            session.close()
        return session.steps


def newest_versions(address: str) -> dict[int, int]:
    """Return the last version of each API that both the broker and this package support."""
    with Connection(address) as connection:
        connection.send(BY_NAME["ApiVersions"], 0, {})
        theirs = {one["api_key"]: one["max_version"] for one in connection.receive()["api_keys"]}
    return {api.key: min(api.last, theirs[api.key]) for api in APIS if api.key in theirs}


def compare_areas(pair: Pair, areas: Iterable[str], levels: Iterable[str] = LEVELS) -> list[Difference]:
    """Run the scenarios of areas at each level."""
    chosen = list(levels)
    return [found for area in areas for level in chosen for found in pair.compare(area, level)]
