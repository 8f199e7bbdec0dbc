"""`warmlog audit-log`: read the audit log of a broker (`warmlog.audit.file`)."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import json_option
from warmlog.cli.output import counted, iso_time, print_json, print_line

AUTHENTICATION = 3002
DENIED = 2
MAX_SHOWN = 3  # resources of an event in its line


def _time_ms(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time such as 2026-11-28 or 2026-11-28T14:00:00Z.") from None


@click.command("audit-log", short_help="Read the audit log of a broker.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--user", metavar="TYPE:NAME", help="Only events of a principal, such as User:alice.")
@click.option("--address", metavar="ADDRESS", help="Only events of clients at this address.")
@click.option("--resource", metavar="NAME", help="Only events about a topic, group, user or other resource.")
@click.option("--failed", is_flag=True, help="Only what failed or was refused.")
@click.option("--since", "since_ms", metavar="TIME", callback=_time_ms, help="Only events from this time on, ISO 8601.")
@json_option("The events as they are in the file, in the classes of OCSF.")
def audit_log(
    file: Path,
    user: str | None,
    address: str | None,
    resource: str | None,
    since_ms: int | None,
    *,
    failed: bool,
    as_json: bool,
) -> None:
    """Print the events of the audit log FILE and of the older files beside it, oldest first.

    An event is a login, a request that was refused for lack of rights, or a change.

      warmlog audit-log data-secrets/audit.jsonl --failed --since 2026-11-28
    """
    if user is not None and ":" not in user:
        raise click.BadParameter(f"a principal is written TYPE:NAME, such as User:{user}.", param_hint="--user")
    for event in _events(file):
        wanted = (
            (user is None or event["actor"]["user"]["name"] == user)
            and (address is None or event["src_endpoint"]["ip"] == address)
            and (resource is None or any(_is_about(one, resource) for one in event.get("resources", ())))
            and (since_ms is None or event["time"] >= since_ms)
            and not (failed and event["status_id"] == 1)
        )
        if wanted and as_json:
            print_json(event)
        elif wanted:
            print_line(_line(event))


def _is_about(resource: dict[str, Any], name: str) -> bool:
    found: str = resource["name"]
    return found == name or (resource["type"] == "partition" and found.rpartition("-")[0] == name)


def _events(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file and of the older ones; lines that are none are skipped and named. Raises Failure."""
    older = {path: re.fullmatch(re.escape(file.name) + r"\.(\d+)", path.name) for path in file.parent.glob("*")}
    numbered = sorted(((int(found[1]), path) for path, found in older.items() if found is not None), reverse=True)
    for path in [*(path for _, path in numbered), file]:
        skipped = []
        try:
            with path.open(encoding="utf-8", errors="replace") as lines:
                for number, line in enumerate(lines, start=1):
                    event = _event(line)
                    if event is not None:
                        yield event
                    elif line.endswith("\n"):  # else it is being written
                        skipped.append(number)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None
        if skipped:
            some = ", ".join(map(str, skipped[:MAX_SHOWN])) + (" and others" if len(skipped) > MAX_SHOWN else "")
            click.echo(f"warmlog: {path}: skipped {counted(len(skipped), 'line')} without an event: {some}", err=True)


def _event(line: str) -> dict[str, Any] | None:
    """Return the event in a line, None if there is none."""
    try:
        event: dict[str, Any] = json.loads(line)
        is_one = all(
            (
                isinstance(event["time"], int),
                isinstance(event["class_uid"], int),
                isinstance(event["status_id"], int),
                isinstance(event["actor"]["user"]["name"], str),
                isinstance(event["src_endpoint"]["ip"], str),
                all(isinstance(each["type"] + each["name"], str) for each in event.get("resources", ())),
                isinstance(event.get("api", {}).get("operation", ""), str),
            )
        )
    except (ValueError, TypeError, KeyError):
        return None
    return event if is_one else None


def _line(event: dict[str, Any]) -> str:
    who = event["actor"]["user"]["name"] or "(unknown user)"
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
    line = f"{iso_time(event['time'])} {who} {event['src_endpoint']['ip']} {what}"
    return f"{line} {named}: {outcome}{repeated}" if named else f"{line}: {outcome}{repeated}"


def _named(resource: dict[str, Any]) -> str:
    """Return a resource with what tells it from others: of an ACL, who is allowed what."""
    data, text = resource.get("data", {}), f"{resource['type']} {resource['name']}"
    if "permission" in data:
        pattern = "..." if data.get("pattern") == "PREFIXED" else ""
        text += f"{pattern} ({data['permission']} {data.get('principal')} {data.get('operation')})"
    elif data:
        text += " (" + ", ".join(f"{name} {_text(value)}" for name, value in data.items()) + ")"
    return text


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
