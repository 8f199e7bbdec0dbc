"""`warmlog audit-log`: read the audit log of one broker (`warmlog.audit.file`) or all (`warmlog.audit.topic`)."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import json_option, native_option
from warmlog.cli.output import counted, iso_time, print_json, print_line
from warmlog.cli.security.audit_topic import read_topic

AUTHENTICATION = 3002
EVENT_LOG = 1008
DENIED = 2
MAX_SHOWN = 3  # maximum resources shown in the line of an event


def _time_ms(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time such as 2026-11-28 or 2026-11-28T14:00:00Z.") from None


@click.command("audit-log", short_help="Read the audit log of a broker.")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--topic", "from_topic", is_flag=True, help="Read the topic __warmlog_audit instead of a file.")
@native_option
@click.option("--follow", is_flag=True, help="With --topic: print further events as they arrive, until Ctrl-C.")
@click.option("--user", metavar="TYPE:NAME", help="Only events of a principal, such as User:alice.")
@click.option("--address", metavar="ADDRESS", help="Only events of clients at this address.")
@click.option("--resource", metavar="NAME", help="Only events about a topic, group, user or other resource.")
@click.option("--failed", is_flag=True, help="Only failed and refused operations.")
@click.option("--since", "since_ms", metavar="TIME", callback=_time_ms, help="Only events from this time on, ISO 8601.")
@json_option("Print the events as stored in the file, in the classes of OCSF.")
def audit_log(
    file: Path | None,
    native: str,
    user: str | None,
    address: str | None,
    resource: str | None,
    since_ms: int | None,
    *,
    from_topic: bool,
    follow: bool,
    failed: bool,
    as_json: bool,
) -> None:
    """Print the events of the audit log FILE and of older files in the same directory, oldest first.

    An event is a login, a request refused for lack of permission, or a change. With --topic, the events are those of
    all brokers with warmlog.audit.topic=true; this requires permission to READ the topic __warmlog_audit.

      warmlog audit-log data-secrets/audit.jsonl --failed --since 2026-11-28
      warmlog audit-log --topic --follow --native broker-1:9091
    """
    if from_topic == (file is not None):
        raise click.UsageError("Name the FILE of an audit log, or use --topic.")
    if follow and not from_topic:
        raise click.UsageError("--follow needs --topic; use `tail -f` for a file.")
    if user is not None and ":" not in user:
        raise click.BadParameter(f"a principal is written TYPE:NAME, such as User:{user}.", param_hint="--user")

    wanted = _Wanted(user, address, resource, since_ms, failed=failed)

    def show(event: dict[str, Any]) -> None:
        if event in wanted:
            print_json(event) if as_json else print_line(_line(event))

    def take(text: str) -> bool:
        event = _event(text)
        if event is not None:
            show(event)
        return event is not None

    if file is None:
        read_topic(native, since_ms, take, follow=follow)
    else:
        for event in _events(file):
            show(event)


class _Wanted:
    """The events to print."""

    def __init__(
        self, user: str | None, address: str | None, resource: str | None, since_ms: int | None, *, failed: bool
    ) -> None:
        """`failed`: only failed and refused operations. None for any other parameter matches all events."""
        self._user = user
        self._address = address
        self._resource = resource
        self._since_ms = since_ms
        self._failed = failed

    def __contains__(self, event: dict[str, Any]) -> bool:
        """Return whether to print an event."""
        resource = self._resource
        return (
            (self._user is None or _user(event) == self._user)
            and (self._address is None or _address(event) == self._address)
            and (resource is None or any(_is_about(each, resource) for each in event.get("resources", ())))
            and (self._since_ms is None or event["time"] >= self._since_ms)
            and not (self._failed and event["status_id"] == 1)
        )


def _user(event: dict[str, Any]) -> str:
    """Return the user of an event, or an empty string for an event about the log itself."""
    return str(event["actor"]["user"]["name"]) if "actor" in event else ""


def _address(event: dict[str, Any]) -> str:
    return str(event["src_endpoint"]["ip"]) if "src_endpoint" in event else ""


def _is_about(resource: dict[str, Any], name: str) -> bool:
    resource_name: str = resource["name"]
    return resource_name == name or (resource["type"] == "partition" and resource_name.rpartition("-")[0] == name)


def _events(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file and of its older files; skip and report lines that are not events. Raises Failure."""
    older = {path: re.fullmatch(re.escape(file.name) + r"\.(\d+)", path.name) for path in file.parent.glob("*")}
    numbered = sorted(((int(match[1]), path) for path, match in older.items() if match is not None), reverse=True)
    for path in [*(path for _, path in numbered), file]:
        skipped = []
        try:
            with path.open(encoding="utf-8", errors="replace") as lines:
                for number, line in enumerate(lines, start=1):
                    event = _event(line)
                    if event is not None:
                        yield event
                    elif line.endswith("\n"):  # otherwise the line is still being written
                        skipped.append(number)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None
        if skipped:
            some = ", ".join(map(str, skipped[:MAX_SHOWN])) + (" and others" if len(skipped) > MAX_SHOWN else "")
            click.echo(f"warmlog: {path}: skipped {counted(len(skipped), 'line')} without an event: {some}", err=True)


def _event(line: str) -> dict[str, Any] | None:
    """Return the event in a line, or None if the line is not an event."""
    try:
        event: dict[str, Any] = json.loads(line)
        is_event = all(
            (
                isinstance(event["time"], int),
                isinstance(event["class_uid"], int),
                isinstance(event["status_id"], int),
                event["class_uid"] == EVENT_LOG or isinstance(event["actor"]["user"]["name"], str),
                event["class_uid"] == EVENT_LOG or isinstance(event["src_endpoint"]["ip"], str),
                all(isinstance(each["type"] + each["name"], str) for each in event.get("resources", ())),
                isinstance(event.get("api", {}).get("operation", ""), str),
            )
        )
    except (ValueError, TypeError, KeyError):
        return None
    return event if is_event else None


def _line(event: dict[str, Any]) -> str:
    if event["class_uid"] == EVENT_LOG:
        return f"{iso_time(event['time'])} {event.get('message', '')}: {event.get('status_detail', '')}"
    who = _user(event) or "(unknown user)"
    is_ok = event["status_id"] == 1
    if event["class_uid"] == AUTHENTICATION:
        what = f"login with {event.get('auth_protocol') or 'an unknown mechanism'}"
        outcome = "ok" if is_ok else f"failed: {event.get('status_detail', '')}"
    else:
        what = event.get("api", {}).get("operation", event.get("message", ""))
        outcome = "ok" if is_ok else "denied" if event.get("action_id") == DENIED else "failed"
        reasons = sorted({each["error"] for each in event.get("resources", ()) if "error" in each})
        if reasons and outcome == "failed":
            outcome += f": {', '.join(reasons)}"
    resources = event.get("resources", [])
    named = ", ".join(_named(each) for each in resources[:MAX_SHOWN])
    more = len(resources) - MAX_SHOWN + event.get("resources_omitted", 0)
    if more > 0:
        named += f" and {more} more"
    repeated = f" ({event['count']} more)" if "count" in event else ""
    line = f"{iso_time(event['time'])} {who} {_address(event)} {what}"
    return f"{line} {named}: {outcome}{repeated}" if named else f"{line}: {outcome}{repeated}"


def _named(resource: dict[str, Any]) -> str:
    """Return a resource with its distinguishing details: for an ACL, principal and operation."""
    data, text = resource.get("data", {}), f"{resource['type']} {resource['name']}"
    if "permission" in data:
        pattern = "..." if data.get("pattern") == "PREFIXED" else ""
        text += f"{pattern} ({data['permission']} {data.get('principal')} {data.get('operation')})"
    elif data:
        text += " (" + ", ".join(f"{name} {_text(value)}" for name, value in data.items()) + ")"
    return text


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
