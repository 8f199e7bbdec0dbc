"""Write the tables of docs/kafka-compatibility.md anew: `make docs` or `python interop/compatibility_document.py`.

Owns: what stands there between `<!-- generated: NAME -->` and `<!-- end -->`, made from the tables of the code and from
what Kafka serves (tests/fixtures/kafka/4.3.1/served.json). All else on the page is written by hand and stays.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from broker.settings.documentation import documentation_of
from broker.settings.live import DYNAMIC_SETTINGS, STAND_INS, LiveSettings
from broker.settings.settings import FIELDS, Settings
from broker.settings.topics import FIXED_SETTINGS, TOPIC_SETTINGS, effective_settings
from broker.settings.types import as_text
from protocol.kafka.api import APIS

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "kafka-compatibility.md"
SERVED = ROOT / "tests" / "fixtures" / "kafka" / "4.3.1" / "served.json"
_BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

TRANSACTIONS = "transactions"
NEWER_GROUPS = "consumer groups of KIP-848, share groups, groups of streams"

#: Kafka's APIs that are not served: key to name and what they are for.
NOT_SERVED: Mapping[int, tuple[str, str]] = {
    24: ("AddPartitionsToTxn", TRANSACTIONS),
    25: ("AddOffsetsToTxn", TRANSACTIONS),
    26: ("EndTxn", TRANSACTIONS),
    27: ("WriteTxnMarkers", TRANSACTIONS),
    28: ("TxnOffsetCommit", TRANSACTIONS),
    65: ("DescribeTransactions", TRANSACTIONS),
    68: ("ConsumerGroupHeartbeat", NEWER_GROUPS),
    69: ("ConsumerGroupDescribe", NEWER_GROUPS),
    76: ("ShareGroupHeartbeat", NEWER_GROUPS),
    77: ("ShareGroupDescribe", NEWER_GROUPS),
    78: ("ShareFetch", NEWER_GROUPS),
    79: ("ShareAcknowledge", NEWER_GROUPS),
    83: ("InitializeShareGroupState", NEWER_GROUPS),
    84: ("ReadShareGroupState", NEWER_GROUPS),
    85: ("WriteShareGroupState", NEWER_GROUPS),
    86: ("DeleteShareGroupState", NEWER_GROUPS),
    87: ("ReadShareGroupStateSummary", NEWER_GROUPS),
    88: ("StreamsGroupHeartbeat", NEWER_GROUPS),
    89: ("StreamsGroupDescribe", NEWER_GROUPS),
    90: ("DescribeShareGroupOffsets", NEWER_GROUPS),
    91: ("AlterShareGroupOffsets", NEWER_GROUPS),
    92: ("DeleteShareGroupOffsets", NEWER_GROUPS),
}


def apis(kafka: Mapping[str, Any]) -> str:
    """What is served, with the versions here and in Kafka."""
    rows = []
    for api in APIS:
        first = api.first if api.advertised_from is None else api.advertised_from
        theirs = tuple(kafka["apis"][str(api.key)])
        same = "the same" if theirs == (first, api.last) else versions(*theirs)
        refused = "" if first == api.first else f" (below {api.first} refused, as in Kafka)"
        rows.append((str(api.key), api.name, versions(first, api.last) + refused, same))
    return table(("key", "API", "versions", "in Kafka 4.3.1"), rows)


def versions(first: int, last: int) -> str:
    """A range."""
    return str(first) if first == last else f"{first} to {last}"


def not_served(_: Mapping[str, Any]) -> str:
    """What is not, by what it is for."""
    found: dict[str, list[str]] = {}
    for name, purpose in NOT_SERVED.values():
        found.setdefault(purpose, []).append(name)
    return table(("for", "APIs"), [(purpose, ", ".join(names)) for purpose, names in sorted(found.items())])


def topic_settings(_: Mapping[str, Any]) -> str:
    """Those that can be set."""
    values = {setting.name: setting.value for setting in effective_settings({}, LiveSettings(Settings()))}
    rows = [
        (code(name), shown(values[name]), code(setting.broker), documentation_of(name) or "")
        for name, setting in sorted(TOPIC_SETTINGS.items())
    ]
    return table(("setting", "default", "the broker's", "meaning"), rows)


def fixed_settings(_: Mapping[str, Any]) -> str:
    """Those that have one value."""
    rows = [
        (code(name), shown(setting.value), documentation_of(name) or "")
        for name, setting in sorted(FIXED_SETTINGS.items())
    ]
    return table(("setting", "accepted", "why"), rows)


def broker_settings(kafka: Mapping[str, Any]) -> str:
    """Those of the broker."""
    rows = []
    for name, field in sorted(FIELDS.items()):
        theirs = kafka["broker"].get(name)
        default = as_text(field.default)
        is_same = theirs is None or theirs["default"] in {default, None}
        differs = "" if is_same else f" (Kafka: {shown(theirs['default'])})"
        when = "at once" if name in DYNAMIC_SETTINGS else "at the start"
        rows.append((code(name), default_of(name, default) + differs, when, documentation_of(name) or ""))
    return table(("setting", "default", "takes effect", "meaning"), rows)


def default_of(name: str, default: str | None) -> str:
    """What a setting is where nobody says; where that is nothing, what stands in for it."""
    if default is None:
        return f"that of {code(STAND_INS[name][0])}"
    return shown(default)


def shown(value: str | None) -> str:
    """A value in a table."""
    return code(value) if value else "(empty)"


def code(text: str) -> str:
    """Text as code."""
    return f"`{text}`"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


BLOCKS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "apis": apis,
    "not-served": not_served,
    "topic-settings": topic_settings,
    "fixed-settings": fixed_settings,
    "broker-settings": broker_settings,
}


def generated(document: str) -> str:
    """The page with its tables as they have to be. Raises KeyError for a block that nobody makes."""
    kafka = json.loads(SERVED.read_text())
    return _BLOCK.sub(lambda block: block[1] + BLOCKS[block[2]](kafka) + block[3], document)


def main() -> None:
    """Write the page."""
    DOCUMENT.write_text(generated(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
