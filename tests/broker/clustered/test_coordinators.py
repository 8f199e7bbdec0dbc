"""Coordinators of groups, while their topic is being created."""

import trio

from protocol.errors import ErrorCode
from tests.broker.clustered.three_brokers import LIMIT_S, Cluster


async def test_a_coordinator_that_has_no_log_yet_is_loading(cluster: Cluster) -> None:
    """Clients ask a coordinator that is loading again; for one that is none, they look elsewhere."""
    reply = await cluster.clients[1].ask("FindCoordinator", key_type=0, coordinator_keys=("g",))
    coordinator = reply["coordinators"][0]["node_id"]
    await cluster.until("__consumer_offsets", lambda _: True, at=coordinator)  # it has heard of the topic
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with trio.fail_after(LIMIT_S):
        while error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            reply = await cluster.clients[coordinator].ask("OffsetFetch", groups=[{"group_id": "g", "topics": None}])
            error = reply["groups"][0]["error_code"]
    assert error == ErrorCode.NONE
