"""A streams group with its clock, topics, stores and answers. Waiters are numbers."""

from typing import Any

from tests.broker.groups.modern.driver import INTERVAL_MS, REBALANCE_MS, SESSION_MS, Cluster, ModernDriver, result_of
from warmlog.broker.groups.automaton import Client
from warmlog.broker.groups.modern.topic_hash import group_hash
from warmlog.broker.groups.streams.assignor.sticky import assign_tasks
from warmlog.broker.groups.streams.effects import AssignTasks
from warmlog.broker.groups.streams.limits import StreamsLimits
from warmlog.broker.groups.streams.state import StreamsGroup
from warmlog.broker.groups.streams.topology.configured import ConfiguredTopology, configure, required_topics
from warmlog.protocol.kafka.messages.groups.streams import (
    InternalTopic,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    Topology,
)

TaskPairs = set[tuple[str, int]]
LATEST_VERSION = 1


def topology(*sources: str, epoch: int = 0, stateful: bool = False) -> Topology:
    """Return a topology with a subtopology for each source, whose id is the source's name."""
    return Topology(
        epoch=epoch,
        subtopologies=tuple(
            Subtopology(
                subtopology_id=source,
                sources=(source,),
                changelogs=(InternalTopic(topic=f"{source}-changelog"),) if stateful else (),
            )
            for source in sources or ("orders",)
        ),
    )


def task_ids(pairs: TaskPairs) -> tuple[TaskIds, ...]:
    """Return tasks as requests have them."""
    return tuple(
        TaskIds(subtopology_id=each, partitions=tuple(sorted(number for name, number in pairs if name == each)))
        for each in sorted({name for name, _ in pairs})
    )


def owning(active: TaskPairs | None = None, standby: TaskPairs | None = None) -> dict[str, Any]:
    """Return the fields of a request that report tasks."""
    return {"active": task_ids(active or set()), "standby": task_ids(standby or set()), "warmup": ()}


def pairs(tasks: tuple[TaskIds, ...] | None) -> TaskPairs | None:
    """Return tasks of a response as pairs of a subtopology and a number; None without tasks."""
    return None if tasks is None else {(each.subtopology_id, number) for each in tasks for number in each.partitions}


class Driver(ModernDriver):
    """A streams group."""

    kind = StreamsGroup

    def __init__(self, cluster: Cluster | None = None, *, auto: bool = True, **limits: Any) -> None:
        given = {
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": INTERVAL_MS,
            "assignment_interval_ms": 0,
            "initial_rebalance_delay_ms": 0,
            "max_size": 100,
            "standby_replicas": 0,
        }
        super().__init__(StreamsLimits(**{**given, **limits}), cluster, auto=auto)

    # -- requests --

    def heartbeat(
        self, member_id: str, epoch: int, *, client: str = "c", version: int = LATEST_VERSION, **fields: Any
    ) -> int:
        """Send a heartbeat and return its waiter."""
        waiter = next(self.waiters)
        request = StreamsGroupHeartbeatRequest(group="g", member_id=member_id, member_epoch=epoch, **fields)
        self.group.limits = self.limits
        self.group.heartbeat(
            request,
            Client(client_id=client, host="/127.0.0.1", holder="127.0.0.1", new_id=""),
            waiter,
            self.cluster,
            self.now,
            configured=self.configured(request),
            version=version,
        )
        self.settle()
        return waiter

    def configured(self, request: StreamsGroupHeartbeatRequest) -> ConfiguredTopology | None:
        """Fit the topology to the topics, as the coordinator does."""
        wanted = self.group.topology_for(request)
        if self.group.configured is not None or wanted is None:
            return self.group.configured
        names = [name for name in required_topics(wanted) if self.cluster.named(name) is not None]
        hashes = {name: self.cluster.hash_of(name) or 0 for name in names}
        last, topics_hash = self.group.last_configured, group_hash(hashes)
        if last is not None and last.metadata_hash == topics_hash:
            return last
        return configure(wanted, self.cluster, topics_hash)

    def join(self, member_id: str, **fields: Any) -> int:
        """Send the first heartbeat of a member."""
        given = {"topology": topology(), "rebalance_timeout_ms": REBALANCE_MS, "process_id": f"p-{member_id}"}
        return self.heartbeat(member_id, 0, **{**given, **owning(), **fields})

    # -- effects --

    def computed(self, effect: AssignTasks) -> Any:
        return result_of(assign_tasks(effect.members, effect.subtopologies, effect.standby_replicas))
