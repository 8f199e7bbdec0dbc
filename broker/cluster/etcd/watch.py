"""A watch of etcd that outlives its connections.

A watch that reports nothing is either idle or stuck: its member of etcd is frozen or cut off, or its connection is half
open. After some time without a report, the store's revision is compared with the last one reported. If they are equal,
there was nothing to report. If not, the watch writes an event for itself; if even that does not arrive, the connection
is replaced. In an etcd that others use as well, that event also advances the revision, so that no caller waits for a
revision that only they have written.
"""

import logging
from random import Random

import trio

from warmlog.broker.cluster.etcd import gateway
from warmlog.broker.cluster.etcd.client import GatewayClient
from warmlog.broker.cluster.etcd.connection import EndpointConnection, EndpointError
from warmlog.broker.cluster.etcd.identity import EtcdIdentity
from warmlog.broker.cluster.store import Changes, CompactedError, Deleted, Event, KeyValue, StoreUnavailableError
from warmlog.protocol.backoff import delays_s

logger = logging.getLogger(__name__)


class EtcdWatch:
    """An iterator over the changes of all keys with a prefix."""

    def __init__(
        self, client: GatewayClient, identity: EtcdIdentity, after_revision: int, *, quiet_s: float, random: Random
    ) -> None:
        self._client = client
        self._identity = identity
        self._revision = after_revision  # everything up to it was reported
        self._quiet_s = quiet_s
        self._random = random
        self._delays = delays_s(random)
        self._connection: EndpointConnection | None = None
        self._is_touched = False  # an event was written in this quiet period

    def __aiter__(self) -> "EtcdWatch":
        return self

    async def __anext__(self) -> Changes:
        """Return the next changes; failures of the store only delay them. Raises StoreMismatchError."""
        while True:
            try:
                changes = await self._next()
            except (EndpointError, StoreUnavailableError) as error:
                logger.debug("watch from revision %d interrupted: %s", self._revision + 1, error)
                self.close()
                await trio.sleep(next(self._delays))
            else:
                self._delays = delays_s(self._random)
                if changes is not None:
                    self._revision = changes.revision
                    return changes

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _next(self) -> Changes | None:
        """Return changes, or None after a timeout or a response without changes. Raises EndpointError, StoreError."""
        if self._connection is None:
            prefix = self._identity.prefix
            request = gateway.WatchCreateRequest(
                prefix, gateway.range_end(prefix), self._revision + 1, progress_notify=True
            )
            self._connection = await self._client.open_watch(gateway.WatchRequest(request))
        response = None
        with trio.move_on_after(self._quiet_s):
            response = await self._connection.watch_response()
        if response is None:
            await self._check()
            return None
        self._is_touched = False
        return self._changes(response)

    async def _check(self) -> None:
        """Replace the connection if it should have reported something."""
        at_least = self._identity.revision
        request = gateway.RangeRequest(self._identity.key)
        response = await self._client.call(gateway.RANGE, request, gateway.RangeResponse)
        self._identity.check(response.header, at_least)
        if response.header.revision <= self._revision:
            return
        if self._is_touched:
            self.close()
        else:
            await self._client.call(gateway.TXN, self._identity.touch_request(), gateway.TxnResponse)
        self._is_touched = not self._is_touched

    def _changes(self, response: gateway.WatchResponse) -> Changes | None:
        self._identity.check(response.header)
        if response.compact_revision:
            raise CompactedError(f"changes before revision {response.compact_revision} are not kept any more")
        if response.canceled:
            raise StoreUnavailableError(f"etcd has cancelled the watch: {response.cancel_reason or 'no reason given'}")
        if response.created:
            return None  # its header's revision may be ahead of the events to come
        if not response.events:
            return Changes(response.header.revision, ()) if response.header.revision > self._revision else None
        events = tuple(event for each in response.events if (event := self._event(each)) is not None)
        return Changes(response.events[-1].kv.mod_revision, events)

    def _event(self, event: gateway.Event) -> Event | None:
        name = self._identity.name(event.kv.key)
        if name is None:
            return None
        if event.type == "DELETE":
            return Deleted(name)
        return KeyValue(name, event.kv.value, event.kv.create_revision, event.kv.mod_revision, event.kv.lease)
