"""The endpoints below `/api/v1`: one table, from which requests are routed and the documentation is generated."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.json import schema_components

from warmlog.broker.console import (
    changes,
    groups,
    health,
    partition_view,
    status,
    topic_list,
    values,
)
from warmlog.broker.console.records import reading
from warmlog.broker.console.records import values as record_values
from warmlog.broker.console.visit import ConsoleError, Handler, Visit

_PARTITION: Final = "topics/{topic}/partitions/{partition}"
_FILTER: Final = {"filter": "a part of the name", "page": "from 0 on"}


class Route(NamedTuple):
    """An endpoint. `returns` is the type of its JSON, None for bytes; `needs` names the rights in words."""

    method: str
    path: str
    handler: Handler
    returns: type[Any] | None
    summary: str
    needs: str
    parameters: Mapping[str, str] = {}
    is_long: bool = False  # bytes of JSON above which a thread encodes it
    takes: type[Any] | None = None

    @property
    def is_change(self) -> bool:
        """Whether the endpoint changes something."""
        return self.method != "GET"


async def index(_: Visit) -> values.Index:
    """Return all endpoints."""
    return values.Index(
        endpoints=tuple(
            values.EndpointForm(
                method=each.method,
                path=f"/api/v1/{each.path}".rstrip("/"),
                summary=each.summary,
                needs=each.needs,
                parameters=dict(each.parameters),
                returns="bytes" if each.returns is None else each.returns.__name__,
            )
            for each in ROUTES
        )
    )


async def schema(_: Visit) -> Mapping[str, Any]:
    """Return the JSON schema of all values."""
    return schemas()


def schemas() -> dict[str, Any]:
    """Return the JSON schemas of all values, by name."""
    types = [kind for each in ROUTES for kind in (each.returns, each.takes) if kind is not None]
    named = [kind for kind in dict.fromkeys([*types, values.Problem]) if kind is not dict]
    return schema_components(named, ref_template="#/{name}")[1]


# fmt: off
ROUTES: Final[Sequence[Route]] = (
    Route("GET", "", index, values.Index, "List the endpoints.", "nothing"),
    Route("GET", "schema", schema, dict, "The JSON schema of every value.", "nothing"),
    Route("GET", "status", status.status, values.Status, "The broker: its totals, latencies and disks.",
          "nothing; DESCRIBE Cluster for the totals, DESCRIBE_CONFIGS Cluster for what a power cut can lose"),
    Route("GET", "topics", topic_list.list_topics, values.TopicList, "A page of 100 topics.",
          "DESCRIBE Topic; others are left out",
          {**_FILTER, "sort": "name, records, size, last_write or partitions", "order": "ascending or descending",
           "internal": "true: with internal topics"}),
    Route("GET", "residency", topic_list.list_residency, values.ResidencyList,
          "Which parts of the logs of topics are in the page cache.", "DESCRIBE Topic; others are left out",
          {"topic": "a name; repeat it for up to 50"}),
    Route("GET", "topics/{topic}", partition_view.describe_topic, values.TopicDetail,
          "A topic with a page of 100 partitions, and its settings.", "DESCRIBE Topic; DESCRIBE_CONFIGS for settings",
          {"page": "from 0 on"}),
    Route("GET", _PARTITION, partition_view.describe_partition, values.PartitionForm,
          "A partition: offsets, epochs, replicas, and the resident pages of each file of its newest 100 segments.",
          "DESCRIBE Topic", is_long=True),
    Route("GET", f"{_PARTITION}/explain", partition_view.explain, values.ExplanationForm,
          "How a fetch would be served, without serving it.", "DESCRIBE and READ Topic",
          {"offset": "an offset", "time": "or a time in milliseconds: its first record",
           "search": "both (default): the plain search beside the warm one; or warm"}, is_long=True),
    Route("GET", f"{_PARTITION}/records", reading.list_records, record_values.RecordList,
          "Records, with the first 1,024 bytes of each key and value.", "DESCRIBE and READ Topic",
          {"order": "newest (default) or oldest", "from": "an offset: newest first, records below it",
           "time": "or a time in milliseconds", "limit": f"up to {reading.MAX_RECORDS} records",
           "key": "text in the key", "text": "text in the value",
           "budget": f"bytes to search, up to {reading.MAX_BUDGET:,}"}, is_long=True),
    Route("GET", f"{_PARTITION}/records/{{offset}}", reading.show_record, record_values.RecordForm, "One record.",
          "DESCRIBE and READ Topic", {"bytes": "of the value"}),
    Route("GET", f"{_PARTITION}/records/{{offset}}/value", reading.read_value, record_values.BytesForm,
          "A piece of the value of a record.", "DESCRIBE and READ Topic", {"start": "first byte", "bytes": "how many"},
          is_long=True),
    Route("GET", f"{_PARTITION}/records/{{offset}}/raw", reading.save_value, None,
          "The value of a record, as it is stored.", "DESCRIBE and READ Topic"),
    Route("GET", "groups", groups.list_groups, values.GroupList, "A page of 100 groups.",
          "DESCRIBE Cluster, or DESCRIBE Group; others are left out", _FILTER),
    Route("GET", "groups/{group}", groups.describe_group, values.GroupDetail,
          "A group: members, positions, lag, and whether its next reads are in memory.",
          "DESCRIBE Group; DESCRIBE Topic for positions", {"page": "from 0 on"}),
    Route("GET", "health", health.health, values.Health, "What is wrong now, and what happened.",
          "DESCRIBE Topic for partitions; DESCRIBE Cluster for all else", is_long=True),
    *(Route("POST", each.path, each.handler, values.Done, each.summary, each.needs, takes=each.takes)
      for each in changes.CHANGES),
)
# fmt: on


def find_route(method: str, parts: Sequence[str]) -> tuple[Route, tuple[str, ...]]:
    """Return the route of a path, and the values in it. Raises ConsoleError."""
    wanted = "GET" if method == "HEAD" else method
    is_known = False
    for each in ROUTES:
        values = _match(each.path, parts)
        if values is not None:
            if each.method == wanted:
                return each, values
            is_known = True
    if is_known:
        raise ConsoleError(405, "METHOD_NOT_ALLOWED", f"{method} is not possible here; see /api/v1")
    raise ConsoleError(404, "NOT_FOUND", "no such endpoint; /api/v1 lists them")


def _match(pattern: str, parts: Sequence[str]) -> tuple[str, ...] | None:
    wanted = pattern.split("/")
    if len(wanted) != len(parts):
        return None
    values = []
    for want, part in zip(wanted, parts, strict=True):
        if want.startswith("{"):
            values.append(part)
        elif want != part:
            return None
    return tuple(values)
