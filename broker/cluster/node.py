"""A broker's membership in the cluster: its registration, its image of the store, and its commits.

    load     read the store
    run      register -> keep the lease | follow the changes | be the controller if no other broker is
    drain    let others lead, before the broker stops; `leave` afterwards

While the store is unavailable, everything that needs no decision continues: the image stays, and calls of `commit`
wait. A lease shows that a broker lives; its end does not prove that the broker is dead. A broker that loses its lease
registers again, and serves in the meantime.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from uuid import UUID

import trio

from warmlog.broker.cluster.decisions import Refusal
from warmlog.broker.cluster.failover import Failover, listens
from warmlog.broker.cluster.image import EMPTY, ClusterImage, ImageDelta
from warmlog.broker.cluster.store import (
    NO_LEASE,
    CompactedError,
    LeaseExpiredError,
    Store,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.topics import drain, end_registration, register
from warmlog.broker.cluster.values import NO_EPOCH, Endpoint, Member, Registration
from warmlog.broker.metadata.errors import CannotJoinError
from warmlog.broker.metadata.topic import RefusedError
from warmlog.protocol.backoff import delays_s

CHECKS_PER_LEASE = 4  # minimum number of renewals during the time of a lease
RENEW_S = 0.75  # longest interval between renewals: others take a late one as a sign of death (`failover`)
RENEW_AGAIN_S = 0.2  # after a failed renewal
LEASES_UNTIL_REFUSED = 1.5  # how long to wait for a registration with other directories to end

logger = logging.getLogger(__name__)


class UsedIdError(CannotJoinError):
    """Another broker of the cluster uses this node.id. `str()` is one line for users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a broker registers. `directories`: their ids; `checks_rights`: whether it has an authorizer."""

    broker: int
    endpoints: tuple[Endpoint, ...]
    directories: tuple[UUID, ...]
    rack: str | None = None
    version: str = ""
    checks_rights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatistics:
    """A node's state, for metrics. `missing_revisions`: how far its image is known to be behind the store."""

    is_registered: bool
    epoch: int
    revision: int
    missing_revisions: int
    since_contact_s: float


class ClusterNode(StoreNode):
    """A broker's membership in a cluster. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        node_id: int,
        *,
        lease_s: float,
        random: Random,
        clock: Callable[[], float] = time.monotonic,
        peer_listener: str = "kafka",
    ) -> None:
        """Prepare a membership. `peer_listener`: the listener over which brokers reach each other."""
        super().__init__(store, node_id, ClusterImage(EMPTY), random)
        self.since = NO_EPOCH  # the first epoch of the history of this broker's data
        self.epoch = NO_EPOCH  # of the latest registration
        self.lease = NO_LEASE
        self._ended_epoch = NO_EPOCH  # of a registration known from others to have ended
        self.peer_listener = peer_listener
        self._clock = clock
        self._last_contact = clock()  # with the store
        self._heard_at = -math.inf  # the same on trio's clock
        self._known_revision = 0  # of the store
        self._lease_s = lease_s
        self._registered = trio.Event()
        self._lost = trio.Event()  # set when the broker has to register again
        self._nursery: trio.Nursery | None = None
        self.failover = Failover(self)

    @property
    def me(self) -> Member:
        """Return this broker with its latest epoch."""
        return Member(self.id, self.epoch)

    @property
    def is_registered(self) -> bool:
        """Whether this broker is registered as alive, according to its image."""
        registration = self.image.brokers.get(self.id)
        return registration is not None and registration.epoch == self.epoch

    @property
    def is_fenced(self) -> bool:
        """Whether other brokers have shown that the registration ended, and the broker has not registered again."""
        return self._ended_epoch != NO_EPOCH and self.latest_epoch <= self._ended_epoch

    @property
    def latest_epoch(self) -> int:
        """Return the epoch of the latest registration; the image may have it before the store's answer arrives."""
        registration = self.image.brokers.get(self.id)
        return self.epoch if registration is None else max(self.epoch, registration.epoch)

    @property
    def silence_s(self) -> float:
        """Return the time since the store last answered."""
        return trio.current_time() - self._heard_at

    async def settled(self) -> None:
        """Return when no broker is suspected of having died, or when the checks take too long."""
        await self.failover.settled()

    def statistics(self) -> NodeStatistics:
        """Return the state of the node. Safe to call from any thread."""
        return NodeStatistics(
            is_registered=self.is_registered,
            epoch=self.epoch,
            revision=self.image.revision,
            missing_revisions=max(0, self._known_revision - self.image.revision),
            since_contact_s=self._clock() - self._last_contact,
        )

    # -- running -------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the store, waiting until it answers. Raises StoreMismatchError, and during startup StoreRefusedError."""
        delays = delays_s(self.random)
        while True:
            try:
                contents = await self._store.range()
            except StoreUnavailableError as error:
                self._fail_startup(error)
                logger.warning("broker %d: waiting for the cluster's store: %s", self.id, error)
                await trio.sleep(next(delays))
            else:
                self._heard_of(contents.revision)
                self._take(self.image.replace(contents))
                return

    async def run(
        self,
        identity: Identity,
        since: int,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Register, and remain a member until cancelled; started when the registration is visible.

        `since`: the first epoch of the history that the data continues, NO_EPOCH after an unclean stop. Raises
        UsedIdError, StoreMismatchError, and StoreRefusedError before it is registered.
        """
        self.since = since
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._follow)
            nursery.start_soon(self._stay_registered, identity)
            await self._registered.wait()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _fail_startup(self, error: StoreUnavailableError) -> None:
        """Raise a refusal during startup, for the user to correct; a running broker retries."""
        if isinstance(error, StoreRefusedError) and not self._registered.is_set():
            raise error

    async def _follow(self) -> None:
        """Advance the image with the store."""
        delays = delays_s(self.random)
        while True:
            try:
                async with self._store.watch(self.image.revision) as changes:
                    async for each in changes:
                        self._heard_of(each.revision)
                        self._take(self.image.apply(each))
                        delays = delays_s(self.random)
            except CompactedError:
                logger.info(
                    "the cluster's store no longer has the changes since revision %d; reading all keys",
                    self.image.revision,
                )
                await self.load()
            except StoreUnavailableError as error:
                logger.warning("watch of the cluster's store interrupted, retrying: %s", error)
                await trio.sleep(next(delays))

    def _heard_of(self, revision: int = 0) -> None:
        """Record that the store has answered, and its revision."""
        self._last_contact = self._clock()
        self._heard_at = trio.current_time()
        self._known_revision = max(self._known_revision, revision)

    def _take(self, delta: ImageDelta) -> None:
        """Notify listeners that the image has advanced."""
        if self.id in delta.brokers and self.image.revision >= self.epoch and not self.is_registered:
            self._lost.set()
        super()._take(delta)

    def fence(self) -> None:
        """Stop leading, because other brokers have proved that the cluster continues without this one.

        This broker registers again once it can reach the store.
        """
        self._ended_epoch = self.latest_epoch
        self._take(self.image.without(self.id))

    # -- the registration ----------------------------------------------------------------------------------------------

    async def _stay_registered(self, identity: Identity) -> None:
        delays = delays_s(self.random)
        while True:
            try:
                await self._wait_for_id(self._registration(identity))
                self.lease = await self._store.grant(self._lease_s)
                if await self._register(self._registration(identity), self.lease):
                    delays = delays_s(self.random)
                    await self._keep_lease(self.lease)
            except LeaseExpiredError:
                logger.warning("broker %d lost its lease; registering again", self.id)
            except StoreUnavailableError as error:
                self._fail_startup(error)
                logger.warning("broker %d: cannot register, retrying: %s", self.id, error)
                await trio.sleep(next(delays))

    async def _wait_for_id(self, wanted: Registration) -> None:
        """Wait until no other broker is registered with this id. Raises UsedIdError.

        A broker that renews its lease is alive. If it does not, and its machine refuses connections, its registration
        is ended before the lease expires.
        """
        reason = f"node.id {self.id} is in use"
        with trio.move_on_after(self._lease_s * LEASES_UNTIL_REFUSED) as scope:
            while (registration := self.image.brokers.get(self.id)) is not None:
                rival = await self._rival(registration, wanted)
                if rival is None:
                    return
                reason = rival
                logger.warning("broker %d: waiting for an earlier registration to end: %s", self.id, reason)
                renews = await self.failover.renews_lease(registration, trio.current_time())
                if renews:
                    raise UsedIdError(reason)
                if renews is False and not await listens(registration.endpoints):
                    await self.attempt(end_registration(self.image, self.id))
                while self.image.brokers.get(self.id) == registration:
                    await self._advanced.wait()
        if scope.cancelled_caught:
            raise UsedIdError(reason)

    async def _rival(self, registered: Registration, wanted: Registration) -> str | None:
        """Return why the broker registered under this id is another one; None if it is an earlier run of this broker.

        Directory ids do not distinguish the two if a data directory was copied; then the other one listens elsewhere.
        """
        decision = register(self.image, wanted, NO_LEASE)
        if isinstance(decision, Refusal):
            return decision.reason
        if set(registered.endpoints) & set(wanted.endpoints) or not await listens(registered.endpoints):
            return None
        return f"node.id {self.id} is in use by a broker with a copy of these data directories, at {registered.where}"

    def _registration(self, identity: Identity) -> Registration:
        return Registration(
            broker=self.id,
            since=self.since,
            endpoints=identity.endpoints,
            rack=identity.rack,
            directories=identity.directories,
            version=identity.version,
            checks_rights=identity.checks_rights,
        )

    async def _register(self, registration: Registration, lease: int) -> bool:
        """Register with a lease; return False if the image was too old. Raises LeaseExpiredError, StoreError."""
        decision = register(self.image, registration, lease)
        if isinstance(decision, Refusal):
            return False
        outcome = await self._store.commit(decision)
        self._heard_of(outcome.revision)
        if not outcome.succeeded:
            await self.reached(outcome.revision)
            return False
        self.epoch = outcome.revision
        if self.since == NO_EPOCH:
            self.since = outcome.revision
        logger.info("broker %d is registered with epoch %d", self.id, self.epoch)
        await self.reached(outcome.revision)
        self._lost = trio.Event()  # drops what was, or seemed, lost before this registration
        if not self.is_registered:
            self._lost.set()
        self._registered.set()
        return True

    async def _keep_lease(self, lease: int) -> None:
        """Renew a lease until the registration is lost. Raises LeaseExpiredError."""
        interval_s = pause_s = min(self._lease_s / CHECKS_PER_LEASE, RENEW_S)
        while not self._lost.is_set():
            with trio.move_on_after(pause_s):
                await self._lost.wait()
            try:
                await self._store.keep_alive(lease)
                self._heard_of()
                pause_s = interval_s
            except StoreUnavailableError as error:
                logger.debug("broker %d: cannot renew its lease, retrying: %s", self.id, error)
                pause_s = min(interval_s, RENEW_AGAIN_S)
        logger.warning("broker %d lost its registration; registering again", self.id)

    async def unrenewed_s(self, registration: Registration) -> float:
        """Return the time since a broker renewed its lease, up to ROUNDING_S too short. Raises StoreError."""
        return await self._store.unrenewed_s(registration.lease)

    async def leave(self) -> None:
        """End the registration, after `run` was cancelled. If the store is unavailable, the lease expires."""
        if self.lease == NO_LEASE:
            return
        try:
            with trio.move_on_after(self._lease_s):
                await self._store.revoke(self.lease)
        except StoreError as error:
            logger.info("broker %d: cannot revoke its lease, which will expire: %s", self.id, error)

    # -- other tasks, and the end --------------------------------------------------------------------------------------

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task in the node's nursery. Does nothing unless the node runs."""
        if self._nursery is not None:
            self._nursery.start_soon(_guarded, run)

    async def drain(self, limit_s: float) -> None:
        """Hand this broker's leaderships to other brokers, for at most this time."""
        delays = delays_s(self.random)
        with trio.move_on_after(limit_s):
            while self.id not in self.image.draining or self.leads_any():
                if self.id in self.image.draining or not self.is_registered:
                    await self._advanced.wait()
                elif not await self._announce_drain():
                    await trio.sleep(next(delays))

    async def _announce_drain(self) -> bool:
        try:
            return bool(await self.attempt(drain(self.image, self.me, self.lease)))
        except StoreError as error:
            logger.info("broker %d: cannot announce its shutdown, retrying: %s", self.id, error)
            return False

    def leads_any(self) -> bool:
        """Return whether this broker leads a partition that another broker could lead."""
        image = self.image
        return any(
            state.leader_id == self.id and any(image.is_good(m) and m.broker not in image.draining for m in state.isr)
            for state in map(image.partitions.__getitem__, image.held.get(self.id, ()))
        )


async def _guarded(run: Callable[[], Awaitable[None]]) -> None:
    try:
        await run()
    except (RefusedError, StoreError) as error:
        logger.info("cannot commit a change of the cluster: %s", error)
