"""What members of all kinds of groups have in common: how they find their coordinator, and how long they live."""

from typing import TypeVar

from tests.cluster.simulation.clients import Client
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import FindCoordinatorRequest
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.kafka.peer_apis import FIND_COORDINATOR

Q = TypeVar("Q")
R = TypeVar("R")

HEARTBEAT_S = 0.5
SESSION_S = 5.0
TOO_SLOW_S = SESSION_S + 2.0  # of a member that is removed meanwhile
LIVES_S = (3.0, 10.0, 40.0)  # on average; each client has one of them

#: Errors of the coordinator after which a member looks for it again.
MOVED = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
#: Errors after which a member joins again.
FENCED = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND}


class Coordinator:
    """The coordinator of a group, as a client knows it."""

    def __init__(self, client: Client, group: str, brokers: int) -> None:
        self.client = client
        self.broker: int | None = None
        self._group = group
        self._brokers = range(1, brokers + 1)

    async def find(self) -> int | None:
        """Return the broker, None if it is not known now. Raises PeerError."""
        if self.broker is None:
            asked = self.client.random.choice(self._brokers)
            response = await self.client.ask(asked, FIND_COORDINATOR, FindCoordinatorRequest(keys=(self._group,)))
            [found] = response.coordinators
            if found.error is ErrorCode.NONE:
                self.broker = found.node_id
        return self.broker

    async def ask(self, api: PeerApi[Q, R], request: Q) -> tuple[int, R] | None:
        """Ask the coordinator; return its id and its response, None if there is none."""
        try:
            broker = await self.find()
            if broker is not None:
                return broker, await self.client.ask(broker, api, request)
        except PeerError:
            self.broker = None
        return None
