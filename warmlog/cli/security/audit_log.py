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
from warmlog.cli.output import iso_time, print_json, print_line

AUTHENTICATION = 3002
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
    """Yield the events of a file and of the older ones. Raises Failure."""
    older = {path: re.fullmatch(re.escape(file.name) + r"\.(\d+)", path.name) for path in file.parent.glob("*")}
    numbered = sorted(((int(found[1]), path) for path, found in older.items() if found is not None), reverse=True)
    for path in [*(path for _, path in numbered), file]:
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    if not line.endswith("\n"):
                        return  # is being written
                    yield _event(path, number, line)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None


def _event(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
        assert {"time", "class_uid", "status_id", "actor", "src_endpoint"} <= event.keys()
    except (ValueError, AttributeError, AssertionError):
        raise Failure(f"{path}: line {number} is not an event of an audit log") from None
    found: dict[str, Any] = event
    return found


def _line(event: dict[str, Any]) -> str:
    who = event["actor"]["user"]["name"] or "(unknown user)"
    if event["class_uid"] == AUTHENTICATION:
        what = f"login with {event['auth_protocol']}"
        outcome = "ok" if event["status_id"] == 1 else f"failed: {event.get('status_detail', '')}"
    else:
        what = event["api"]["operation"]
        outcome = "ok" if event["status_id"] == 1 else "denied" if event.get("action_id") == 2 else "failed"
    resources = event.get("resources", [])
    named = ", ".join(f"{each['type']} {each['name']}" for each in resources[:MAX_SHOWN])
    more = len(resources) - MAX_SHOWN + event.get("resources_omitted", 0)
    if more > 0:
        named += f" and {more} more"
    repeated = f" ({event['count']} times)" if "count" in event else ""
    line = f"{iso_time(event['time'])} {who} {event['src_endpoint']['ip']} {what}"
    return f"{line} {named}: {outcome}{repeated}" if named else f"{line}: {outcome}{repeated}"
