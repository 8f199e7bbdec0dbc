"""How much memory groups hold, and for whom: members, what they have declared, assignments and committed offsets.

A group counts for the address that created it. An address holds at most a quarter of `warmlog.groups.memory.max.bytes`,
so that a client that invents groups, or commits long texts, cannot use up what others need. Groups that were loaded
from the log count for no address. Sizes are those of the contents with an estimate of the objects around them.
"""

import logging
import math
from collections.abc import Callable

from warmlog.broker.groups.state import Group

logger = logging.getLogger(__name__)

ADDRESS_SHARE = 4  # an address may hold one part in so many
GROUP_BYTES = 1_200
MEMBER_BYTES = 1_000
LOG_PAUSE_S = 10.0


class Holdings:
    """The bytes that the groups of a broker hold. Used on the event loop only."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        """`limit`: of all groups together, in bytes. `clock` returns seconds."""
        self._limit = limit
        self._clock = clock
        self._log_at = -math.inf
        self._by_address: dict[str, int] = {}
        self.total = 0
        self.refused = 0

    def admit(self, group: Group | None, address: str, growth: int) -> bool:
        """Return whether a group may hold so many bytes more; a refusal is counted and logged.

        `group` is None if it does not exist yet. `address`: of the client that asks.
        """
        owner = address if group is None else group.owner
        growth += GROUP_BYTES if group is None else 0
        held = self._by_address.get(owner, 0)
        if growth <= 0 or (self.total + growth <= self._limit and (not owner or held + growth <= self.share)):
            return True
        self.refused += 1
        if self._clock() >= self._log_at:
            self._log_at = self._clock() + LOG_PAUSE_S
            logger.warning(
                "refused %s bytes more for groups of %s, which hold %s: warmlog.groups.memory.max.bytes is %s,"
                " a quarter of it for one address",
                *(f"{growth:,}", owner or address, f"{held if owner else self.total:,}", f"{self._limit:,}"),
            )
        return False

    @property
    def share(self) -> int:
        """The bytes that the groups of one address may hold."""
        return self._limit // ADDRESS_SHARE

    def settle(self, group: Group, offset_bytes: int) -> None:
        """Count what a group holds now. `offset_bytes`: of its committed offsets."""
        members = group.members
        self._change(group, GROUP_BYTES + MEMBER_BYTES * len(members) + members.held_bytes + offset_bytes)

    def release(self, group: Group) -> None:
        """Count a group no longer."""
        self._change(group, 0)

    def _change(self, group: Group, held: int) -> None:
        delta = held - group.counted_bytes
        if not delta:
            return
        group.counted_bytes = held
        self.total += delta
        if group.owner:
            left = self._by_address.get(group.owner, 0) + delta
            if left > 0:
                self._by_address[group.owner] = left
            else:
                self._by_address.pop(group.owner, None)
