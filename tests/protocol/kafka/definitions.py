"""Kafka's definitions of its messages, from the file that interop/generate_definitions.py writes."""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PATH = Path(__file__).parents[2] / "fixtures" / "kafka" / "4.4.0" / "definitions.txt"
NEWEST = 1 << 15  # where a range of versions is open

_MESSAGE = re.compile(r"(?P<name>\w+)(?: key (?P<key>\d+))? versions (?P<versions>\S+) flexible (?P<flexible>\S+)")
_FIELD = re.compile(
    r"(?P<name>\w+) (?P<kind>\S+) versions (?P<versions>\S+)(?: nullable (?P<nullable>\S+))?"
    r'(?: tag (?P<tag>\d+) (?P<tagged>\S+))?(?: default (?P<default>".*"))?(?: ignorable)?'
)


@dataclass(frozen=True, slots=True)
class Definition:
    """A message or a field of one; `kind` is empty for a message, and begins with [] for an array."""

    name: str
    kind: str
    versions: range
    nullable: range
    tag: int | None
    default: str | None
    flexible: range
    fields: list["Definition"] = field(default_factory=list)


@cache
def definitions() -> dict[str, Definition]:
    """Read the file."""
    path: list[Definition] = []  # from a message to the field of the line before
    found: dict[str, Definition] = {}
    for line in PATH.read_text().splitlines():
        text = line.lstrip()
        depth = (len(line) - len(text)) // 4
        match = (_FIELD if depth else _MESSAGE).match(text)
        assert match, line
        parts = match.groupdict()
        one = Definition(
            name=parts["name"],
            kind=parts.get("kind") or "",
            versions=versions(parts["versions"]),
            nullable=versions(parts.get("nullable")),
            tag=int(parts["tag"]) if parts.get("tag") else None,
            default=json.loads(parts["default"]) if parts.get("default") else None,
            flexible=versions(parts.get("flexible")),
        )
        del path[depth:]
        if path:
            path[-1].fields.append(one)
        else:
            found[one.name] = one
        path.append(one)
    return found


def versions(text: str | None) -> range:
    """Read a range of versions as Kafka writes it: `3`, `0-5`, `3+` or `none`."""
    if text is None or text == "none":
        return range(0)
    first, _, last = text.rstrip("+").partition("-")
    return range(int(first), NEWEST if text.endswith("+") else int(last or first) + 1)
