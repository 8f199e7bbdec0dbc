"""Events of the audit log, in the classes of OCSF 1.3: Authentication (3002) and API Activity (6003).

An event names the user, the client's address, the API and the resources with their outcomes. It has no records, no
values of settings and no passwords.
Source: https://schema.ocsf.io/1.3.0/classes/authentication and .../api_activity.
"""

import json
from collections.abc import Iterator, Sequence
from enum import IntEnum
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, NamedTuple

from warmlog.broker.api.audit.changes import CHANGES, Activity, Resource, changed
from warmlog.broker.api.context import Session
from warmlog.broker.metadata.topic import AUDIT_TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.response import ErrorResponse

EVENT_BYTES: Final = 2500
MAX_LINE_BYTES: Final = 512 << 10  # bytes of a line in the topic: the largest batch is 1 MiB by default
RESOURCE_BYTES: Final = 300
OCSF_VERSION: Final = "1.3.0"
MAX_RESOURCES: Final = 1000  # resources listed in the event of a change; further ones are only counted
MAX_REFUSED: Final = 20  # resources listed in the event of a refusal
MAX_SCANNED: Final = 10_000  # results of a response searched for refusals
MAX_DETAILS: Final = 20
MAX_TEXT: Final = 300  # characters of a name that a client has sent
DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
# The fields with the results of a response, and with the object of a request.
_RESULTS: Final = ("topics", "partitions", "results", "resources", "groups", "coordinators", "transactions", "acls")
_KINDS: Final = {"topics": "topic", "groups": "group"}
_NAMES: Final = (
    ("topic", "topic"),
    ("group", "group"),
    ("transactional_id", "transactional id"),
    ("name", "resource"),
    ("key", "coordinator of"),
)

Event = dict[str, Any]
SUCCESS: Final = 1  # a status_id
ALLOWED_ACTION: Final = {"action": "Allowed", "action_id": 1}
DENIED_ACTION: Final = 2  # the id
_DENIED_ACTION: Final = {"action": "Denied", "action_id": DENIED_ACTION}


class Class(IntEnum):
    """Classes of events."""

    EVENT_LOG = 1008
    AUTHENTICATION = 3002
    API_ACTIVITY = 6003


def login(session: Session, user: str, mechanism: str, *, is_ok: bool, reason: str, time_ms: int) -> Event:
    """Return the event of a login. `user`: the principal; empty if not authenticated."""
    event = _event(Class.AUTHENTICATION, Activity.CREATE, session, is_ok=is_ok, time_ms=time_ms)
    event |= {"actor": {"user": {"name": user}}, "auth_protocol": mechanism}
    if not is_ok:
        event["status_detail"] = reason
    return event


def denied(api: str, request: Any, response: Any, session: Session, *, time_ms: int) -> Event | None:
    """Return the event of a request that was refused, entirely or in part, for lack of rights; None if it was not."""
    refused = list(islice(_refused(request, response), MAX_REFUSED))
    if not refused:
        return None
    event = _event(Class.API_ACTIVITY, _activity(api), session, is_ok=False, time_ms=time_ms)
    return event | _about(api, refused, (), total=len(refused)) | _DENIED_ACTION


def change(api: str, request: Any, response: Any, session: Session, *, subject: str = "", time_ms: int) -> Event:
    """Return the event of a request that has changed something, or failed to.

    `subject`: the name of its object, if the request does not have it.
    """
    items = changed(api, request)
    errors = _errors(response, len(items))
    is_ok = all(code is ErrorCode.NONE for code in errors)
    event = _event(Class.API_ACTIVITY, _activity(api), session, is_ok=is_ok, time_ms=time_ms)
    is_denied = all(code in DENIED for code in errors)
    named = items[: MAX_REFUSED if is_denied else MAX_RESOURCES]
    resources = [CHANGES[api].describe(item) for item in named]
    if subject:
        resources = [each._replace(name=subject) for each in resources]
    event |= _about(api, resources, errors, total=len(items))
    event |= _DENIED_ACTION if is_denied else ALLOWED_ACTION
    if getattr(request, "validate_only", False):
        event["unmapped"]["validate_only"] = True
    return event


def lost(count: int, first_ms: int, last_ms: int, why: str, *, time_ms: int) -> Event:
    """Return the event that reports the number of events missing in the topic, and the times of the first and the last.

    Source: https://schema.ocsf.io/1.3.0/classes/event_log_activity.
    """
    return {
        **_head(Class.EVENT_LOG, Activity.OTHER, is_ok=False, time_ms=time_ms),
        "activity_name": "Lost",
        "status_detail": why[:MAX_TEXT],
        "message": f"{count} events are missing in the topic, not in the file",
        "count": count,
        "start_time": first_ms,
        "end_time": last_ms,
        "log_name": AUDIT_TOPIC,
        "unmapped": {},
    }


def _head(kind: Class, activity: Activity, *, is_ok: bool, time_ms: int) -> Event:
    return {
        "time": time_ms,
        "class_uid": int(kind),
        "category_uid": int(kind) // 1000,
        "activity_id": int(activity),
        "type_uid": int(kind) * 100 + int(activity),
        "severity_id": 1 if is_ok else 3,  # informational, medium
        "status": "Success" if is_ok else "Failure",
        "status_id": SUCCESS if is_ok else 2,
        "metadata": {"version": OCSF_VERSION, "product": {"name": "warmlog"}},
    }


def _event(kind: Class, activity: Activity, session: Session, *, is_ok: bool, time_ms: int) -> Event:
    return {
        **_head(kind, activity, is_ok=is_ok, time_ms=time_ms),
        "actor": {"user": {"name": str(session.principal)}},
        "src_endpoint": {"ip": session.peer[0], "port": session.peer[1]},
        "unmapped": {"listener": session.listener, "client_id": session.client_id[:MAX_TEXT]},
    }


def _activity(api: str) -> Activity:
    known = CHANGES.get(api)
    return Activity.READ if known is None else known.activity


def _about(api: str, resources: Sequence[Resource], errors: Sequence[ErrorCode], *, total: int) -> Event:
    listed = []
    for number, resource in enumerate(resources):
        entry: dict[str, Any] = {"type": resource.type, "name": resource.name[:MAX_TEXT]}
        if resource.details:
            entry["data"] = {name: _short(value) for name, value in resource.details.items()}
        if number < len(errors) and errors[number] is not ErrorCode.NONE:
            entry["error"] = errors[number].name
        listed.append(entry)
    about: Event = {"api": {"operation": api, "service": {"name": "kafka"}}, "resources": listed}
    if total > len(listed):
        about["resources_omitted"] = total - len(listed)
    return about


def _short(value: Any) -> Any:
    """Return a value cut to MAX_TEXT characters or MAX_DETAILS items."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, tuple | list):
        return [_short(each) for each in value[:MAX_DETAILS]]
    return value


def _errors(response: Any, count: int) -> list[ErrorCode]:
    """Return the outcome of each item, if the response has one for each."""
    if isinstance(response, ErrorResponse):
        return [response.error] * max(count, 1)
    for name in _RESULTS:
        results = getattr(response, name, None)
        if isinstance(results, tuple | list) and len(results) == count:
            return [getattr(each, "error", ErrorCode.NONE) for each in results]
    whole = getattr(response, "error", ErrorCode.NONE)
    return [whole] * max(count, 1)


def _refused(request: Any, response: Any) -> Iterator[Resource]:
    """Yield the refused resources."""
    if getattr(response, "error", None) in DENIED:
        yield _named(request)
        return
    for name in _RESULTS:
        results = getattr(response, name, None)
        if isinstance(results, tuple | list):
            for each in islice(results, MAX_SCANNED):
                if getattr(each, "error", None) in DENIED:
                    yield _resource(each, _KINDS.get(name, "resource"))


def _named(request: Any) -> Resource:
    """Return the object of a whole request: a field with its name, or the cluster."""
    for field, kind in _NAMES:
        value = getattr(request, field, None)
        if isinstance(value, str) and value:
            return Resource(kind, value)
    return Resource("cluster", "kafka-cluster")


def _resource(item: Any, plain: str) -> Resource:
    for field, kind in _NAMES:
        value = getattr(item, field, None)
        if isinstance(value, str):
            partition = getattr(item, "partition", None)
            if field == "topic" and isinstance(partition, int):
                return Resource("partition", f"{value}-{partition}")
            return Resource(plain if field == "name" else kind, value)
    return Resource(plain, "")


def size_of(event: Event) -> int:
    """Estimate the bytes that an event takes in memory."""
    return EVENT_BYTES + sum(RESOURCE_BYTES + len(each["name"]) for each in event.get("resources", ()))


def kind_of(event: Event) -> bytes:
    """Return the kind of an event: only the first event of a kind is written, and the others are counted."""
    names = ("class_uid", "api", "resources", "actor", "auth_protocol", "status_detail")
    same = [*map(event.get, names), event["src_endpoint"]["ip"]]
    return blake2b(json.dumps(same).encode(), digest_size=16).digest()


class Line(NamedTuple):
    """An encoded event.

    `key`: chooses the partition of the topic; None for an event that is only written to the file.
    """

    text: bytes  # in the file, with the line end
    value: bytes  # in the topic
    key: bytes | None
    time_ms: int


def as_line(event: Event, uid: str, broker: int) -> Line:
    """Encode an event with its id and the number of the recording broker. Slow: call it in a worker thread."""
    whole = {
        **event,
        "metadata": {**event["metadata"], "uid": uid},
        "unmapped": {**event["unmapped"], "broker": broker},
    }
    text = _encoded(whole)
    value, resources = text, whole.get("resources", [])
    while len(value) > MAX_LINE_BYTES and resources:
        resources = resources[: len(resources) // 2]
        omitted = whole.get("resources_omitted", 0) + len(whole["resources"]) - len(resources)
        value = _encoded({**whole, "resources": resources, "resources_omitted": omitted})
    return Line(text + b"\n", value, _key_of(event), event["time"])


def _encoded(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def _key_of(event: Event) -> bytes | None:
    """Return the key that keeps the events of a principal (or address, if unknown) in order; None to omit the event.

    A refused write to the topic itself has no key: its sender may be a broker that appends events, and each event would
    cause another.
    """
    resources = event.get("resources", ())
    if event.get("api", {}).get("operation") == "produce" and any(map(_is_of_topic, resources)):
        return None
    if "actor" not in event:
        return b""
    name: str = event["actor"]["user"]["name"] or event["src_endpoint"]["ip"]
    return name.encode()


def _is_of_topic(resource: dict[str, Any]) -> bool:
    return bool(resource["name"].rpartition("-")[0] == AUDIT_TOPIC)
