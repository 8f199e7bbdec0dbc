"""The store in etcd, through its JSON gateway.

A watch delivers each change once and in order, over any number of connections (`watch`). Another etcd, or one that
has lost transactions, is recognised and refused (`identity`).
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from math import ceil
from random import Random
from typing import Self

import trio

from warmlog.broker.cluster.etcd import gateway
from warmlog.broker.cluster.etcd.account import Account
from warmlog.broker.cluster.etcd.client import GatewayClient
from warmlog.broker.cluster.etcd.connection import StatusError
from warmlog.broker.cluster.etcd.endpoints import EtcdEndpoint, Timeouts
from warmlog.broker.cluster.etcd.identity import EtcdIdentity
from warmlog.broker.cluster.etcd.watch import EtcdWatch
from warmlog.broker.cluster.store import (
    NO_LEASE,
    ROUNDING_S,
    Changes,
    KeyValue,
    KnownStore,
    LeaseExpiredError,
    Operation,
    Outcome,
    Put,
    Range,
    StoreTransaction,
    StoreUnavailableError,
)
from warmlog.broker.cluster.store_metrics import measured
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.security.client_tls import ClientTls

MAX_COMMITS = 16  # concurrent calls: more would only wait inside etcd, each with a connection
PAGE_KEYS = 1000  # keys of a range per page, so that decoding one does not hold the event loop


class EtcdStore:
    """A Store. Use it inside `async with`, or call `close`."""

    def __init__(
        self,
        endpoints: Sequence[EtcdEndpoint],
        cluster: str,
        *,
        metrics: Metrics,
        tls: ClientTls | None = None,
        account: Account | None = None,
        known: KnownStore | None = None,
        timeouts: Timeouts = Timeouts(),  # noqa: B008  # immutable
        random: Random | None = None,
    ) -> None:
        """Use the keys of a cluster. `known`: the store used before, as `known` returned it then.

        `tls`: how to connect to endpoints with https. `account`: the user, if authentication is enabled in etcd.
        """
        self._identity = EtcdIdentity(cluster, known)
        self._metrics = metrics
        self._timeouts = timeouts
        self._random = random or Random()  # noqa: S311  # jitter of delays
        self._client = GatewayClient(endpoints, self._identity.greet, timeouts, tls=tls, account=account)
        self._commits = trio.CapacityLimiter(MAX_COMMITS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @property
    def known(self) -> KnownStore | None:
        """The store's identity and highest revision seen; None before the first call. Callers keep it over restarts."""
        return self._identity.known

    async def range(self, prefix: str = "") -> Range:
        """Return all keys that begin with a prefix, including every transaction answered before the call."""
        with measured(self._metrics, "range"):
            while True:
                try:
                    return await self._range(self._identity.etcd_key(prefix))
                except StatusError as error:
                    if gateway.COMPACTED not in error.status.message:  # between two pages
                        raise

    async def commit(self, transaction: StoreTransaction) -> Outcome:
        """Commit a transaction if its comparisons hold. Raises LeaseExpiredError if a lease of it has ended."""
        etcd_key = self._identity.etcd_key
        request = gateway.TxnRequest(
            compare=[gateway.ModCompare(etcd_key(each.key), each.mod_revision) for each in transaction.compares],
            success=[self._operation(each) for each in transaction.operations],
        )
        async with self._commits:
            with measured(self._metrics, "commit"), _lease_errors():
                return await self._commit(request)

    @asynccontextmanager
    async def watch(self, after_revision: int) -> AsyncIterator[AsyncIterator[Changes]]:
        """Iterate over all changes after a revision, in order. The iterator raises CompactedError."""
        watch = EtcdWatch(
            self._client, self._identity, after_revision, quiet_s=self._timeouts.quiet_s, random=self._random
        )
        try:
            yield watch
        finally:
            watch.close()

    async def grant(self, ttl_s: float) -> int:
        """Create a lease that ends after this time, rounded up to seconds, unless it is kept alive."""
        with measured(self._metrics, "grant"):
            request = gateway.GrantRequest(ttl=ceil(ttl_s))
            response = await self._client.call(gateway.GRANT, request, gateway.LeaseResponse)
            self._identity.check(response.header)
        return response.id

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease, and return how many seconds it lasts. Raises LeaseExpiredError."""
        with measured(self._metrics, "keep_alive"):
            request = gateway.LeaseRequest(id=lease)
            line = await self._client.call(gateway.KEEP_ALIVE, request, gateway.Line[gateway.LeaseResponse])
            response = line.result
            if response is None:
                raise StoreUnavailableError(line.error.message if line.error else "etcd gave no response")
            self._identity.check(response.header)
        if not response.ttl:
            raise LeaseExpiredError(f"lease {lease:x} has expired")
        return float(response.ttl)

    async def unrenewed_s(self, lease: int) -> float:
        """Return the time since a lease was renewed, in whole seconds, rounded down.

        Raises LeaseExpiredError.
        """
        with measured(self._metrics, "time_to_live"), _lease_errors():
            request = gateway.LeaseRequest(id=lease)
            response = await self._client.call(gateway.TIME_TO_LIVE, request, gateway.TimeToLiveResponse)
            self._identity.check(response.header)
        if response.ttl < 0:
            raise LeaseExpiredError(f"lease {lease:x} has expired")
        return max(0.0, response.granted_ttl - response.ttl - ROUNDING_S)

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys. A lease that has ended already is not an error."""
        try:
            with measured(self._metrics, "revoke"), _lease_errors():
                request = gateway.LeaseRequest(id=lease)
                response = await self._client.call(gateway.REVOKE, request, gateway.HeaderResponse)
                self._identity.check(response.header)
        except LeaseExpiredError:
            pass

    def _operation(self, operation: Operation) -> gateway.RequestOp:
        key = self._identity.etcd_key(operation.key)
        if isinstance(operation, Put):
            return gateway.RequestOp(request_put=gateway.PutRequest(key, operation.value, operation.lease))
        return gateway.RequestOp(request_delete_range=gateway.DeleteRangeRequest(key))

    async def _commit(self, request: gateway.TxnRequest) -> Outcome:
        at_least = self._identity.revision
        response = await self._client.call(gateway.TXN, request, gateway.TxnResponse, is_repeatable=False)
        self._identity.check(response.header, at_least)
        return Outcome(response.succeeded, response.header.revision)

    async def _range(self, prefix: bytes) -> Range:
        """Read all keys with a prefix, page by page, as of the revision of the first page."""
        begin, end, revision, more = prefix, gateway.range_end(prefix), 0, True
        items: list[KeyValue] = []
        while more:
            at_least = self._identity.revision if not revision else 0
            request = gateway.RangeRequest(begin, end, limit=PAGE_KEYS, revision=revision)
            page = await self._client.call(gateway.RANGE, request, gateway.RangeResponse)
            self._identity.check(page.header, at_least)
            revision = revision or page.header.revision
            items += self._items(page.kvs)
            more = page.more and bool(page.kvs)
            begin = page.kvs[-1].key + b"\0" if page.kvs else b""
        return Range(revision, tuple(items))

    def _items(self, kvs: Sequence[gateway.EtcdKeyValue]) -> Iterator[KeyValue]:
        for kv in kvs:
            name = self._identity.name(kv.key)
            if name is not None:
                yield KeyValue(name, kv.value, kv.create_revision, kv.mod_revision, kv.lease or NO_LEASE)


@contextmanager
def _lease_errors() -> Iterator[None]:
    """Raise LeaseExpiredError where etcd does not find a lease."""
    try:
        yield
    except StatusError as error:
        if gateway.LEASE_NOT_FOUND in error.status.message:
            raise LeaseExpiredError(str(error)) from None
        raise
