"""Identify the etcd that a cluster uses, and its keys there.

Keys are stored under `/warmlog/CLUSTER/`. One of them is not part of the contents: `store` has a random id, written by
the first broker that connects. It distinguishes etcd clusters that were bootstrapped alike and so have the same
cluster id.
"""

from uuid import uuid4

from warmlog.broker.cluster.etcd import gateway
from warmlog.broker.cluster.etcd.connection import EndpointConnection
from warmlog.broker.cluster.store import KnownStore, StoreMismatchError


class EtcdIdentity:
    """The etcd cluster in use, and the highest revision seen.

    Invariants:
    1. Every response has the known cluster id, and every new connection has read the known `store` key.
    2. A linearizable response has at least the highest revision that was known when its request was sent. An etcd that
       was wiped, or restored from a backup, breaks this rule or the first.
    """

    def __init__(self, cluster: str, known: KnownStore | None) -> None:
        self.prefix = f"/warmlog/{cluster}/".encode()
        self.key = self.prefix + b"store"
        self.known = known

    @property
    def revision(self) -> int:
        """The highest revision seen."""
        return 0 if self.known is None else self.known.revision

    def etcd_key(self, name: str) -> bytes:
        """Return the key in etcd for a name relative to the prefix."""
        return self.prefix + name.encode()

    def name(self, key: bytes) -> str | None:
        """Return the name of a key in etcd, or None for the one that is not part of the cluster's contents."""
        return None if key == self.key else key[len(self.prefix) :].decode()

    def check(self, header: gateway.Header, at_least: int = 0, *, who: str = "etcd") -> None:
        """Advance the highest revision. Raises StoreMismatchError for another etcd cluster, or a revision too low."""
        known = self.known
        if known is None:
            return
        if header.cluster_id != known.cluster_id:
            raise StoreMismatchError(
                f"{who} belongs to etcd cluster {header.cluster_id:x}, not {known.cluster_id:x}: "
                "give the endpoints of the etcd that this Kafka cluster has used so far, and only those"
            )
        if header.revision < at_least:
            raise StoreMismatchError(
                f"{who} is at revision {header.revision} and was at {at_least}: it was wiped, or restored from a "
                "backup that lacks decisions already carried out; restore its latest state"
            )
        if header.revision > known.revision:
            self.known = known._replace(revision=header.revision)

    async def greet(self, connection: EndpointConnection) -> None:
        """Compare the etcd at the other end of a new connection with the known one. Raises StoreMismatchError."""
        at_least = self.revision
        response = await connection.call(gateway.RANGE, gateway.RangeRequest(self.key), gateway.RangeResponse)
        who = f"the etcd at {connection.endpoint}"
        self.check(response.header, at_least, who=who)
        identity = response.kvs[0].value.decode() if response.kvs else None
        if self.known is None:
            identity = identity or await self._create(connection)
            self.known = KnownStore(response.header.cluster_id, identity, response.header.revision)
        elif identity != self.known.identity:
            what = "has no data of this Kafka cluster" if identity is None else "is another Kafka cluster's store"
            raise StoreMismatchError(
                f"{who} {what}, unlike the one used so far: "
                "give the endpoints of that one, and only those; if it was wiped, restore its latest state"
            )

    def touch_request(self) -> gateway.TxnRequest:
        """Return a transaction that leaves the contents unchanged, but is an event of each watch."""
        assert self.known is not None
        return gateway.TxnRequest(success=[self._put(self.known.identity)])

    async def _create(self, connection: EndpointConnection) -> str:
        """Write a random id into a new store and return it; return another broker's id if that was faster."""
        identity = uuid4().hex
        request = gateway.TxnRequest(compare=[gateway.ModCompare(self.key)], success=[self._put(identity)])
        if (await connection.call(gateway.TXN, request, gateway.TxnResponse)).succeeded:
            return identity
        response = await connection.call(gateway.RANGE, gateway.RangeRequest(self.key), gateway.RangeResponse)
        return response.kvs[0].value.decode()

    def _put(self, identity: str) -> gateway.RequestOp:
        return gateway.RequestOp(request_put=gateway.PutRequest(self.key, identity.encode()))
