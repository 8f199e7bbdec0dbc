"""The memory of groups by holder: members with their declarations, assignments, committed offsets.

A holder is the principal of authenticated clients (`User:alice`), regardless of address, or the address of other
clients. A member counts for its holder; a group and its offsets count for the holder that created the group, or that
committed first since it was loaded from the log. A holder may have at most a quarter of
`warmlog.groups.memory.max.bytes`, so a client that invents groups and members, or commits long texts, leaves memory for
others. Sizes are those of the contents plus an estimate for the objects around them.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping

from warmlog.broker.groups.group import Group

logger = logging.getLogger(__name__)

HOLDER_SHARE = 4  # a holder's share is the limit divided by this
GROUP_BYTES = 1_200
LOG_PAUSE_S = 10.0


class Holdings:
    """The bytes that the groups of a broker hold. Used on the event loop only."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        """Begin without groups. `limit`: the maximum bytes of all groups together. `clock` returns seconds."""
        self._limit = limit
        self._clock = clock
        self._log_at = -math.inf
        self._by_holder: Counter[str] = Counter()
        self.total = 0
        self.refused = 0

    def admit(self, holder: str, growth: int) -> bool:
        """Return whether a holder may have this many more bytes; a refusal is counted and logged.

        An empty name stands for this broker, which has no share of its own.
        """
        held = self._by_holder[holder]
        share = self._limit // HOLDER_SHARE if holder else self._limit
        if growth <= 0 or (held + growth <= share and self.total + growth <= self._limit):
            return True
        self.refused += 1
        if self._clock() >= self._log_at:
            self._log_at = self._clock() + LOG_PAUSE_S
            logger.warning(
                "refused %s more bytes of groups for %s, which holds %s (warmlog.groups.memory.max.bytes: %s, a quarter"
                " for each principal or address)",
                *(f"{growth:,}", holder or "this broker", f"{held:,}", f"{self._limit:,}"),
            )
        return False

    def settle(self, group: Group, offset_bytes: int) -> None:
        """Count the bytes that a group holds now. `offset_bytes`: the bytes of its committed offsets."""
        held = Counter(group.held)
        held[group.owner] += GROUP_BYTES + offset_bytes
        if held != group.counted:
            self._replace(group, held)

    def release(self, group: Group) -> None:
        """Remove a group from the count."""
        self._replace(group, {})

    def _replace(self, group: Group, held: Mapping[str, int]) -> None:
        self.total += sum(held.values()) - sum(group.counted.values())
        for holder, size in group.counted.items():
            self._by_holder[holder] -= size
        for holder, size in held.items():
            self._by_holder[holder] += size
        for holder in group.counted.keys() | held.keys():
            if not self._by_holder[holder]:
                del self._by_holder[holder]
        group.counted = held
