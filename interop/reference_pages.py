"""Write the generated parts of the reference pages in `docs`: `make docs`, or `python interop/reference_pages.py`.

On each page, the text between `<!-- generated: NAME -->` and `<!-- end -->` comes from the code: from its tables of
APIs and settings, the declarations of metrics, and the options of the command line; and from a list of what Kafka
serves (tests/fixtures/kafka/4.4.0/served.json). The rest of a page is written by hand and kept.
"""

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

import click

from interop.python_reference import python_api
from warmlog.broker.api.authorization.table import HTTP_PATHS, ROWS
from warmlog.broker.console.routes import ROUTES
from warmlog.broker.partitions.partition_metrics import LABELS
from warmlog.broker.settings.documentation import documentation_of
from warmlog.broker.settings.live import DYNAMIC_SETTINGS, STAND_INS, LiveSettings
from warmlog.broker.settings.settings import FIELDS, Settings
from warmlog.broker.settings.topics import (
    FIXED_SETTINGS,
    MIN_ISR,
    REPLICA_LISTS,
    TAKES_DEAD_LETTERS,
    TOPIC_SETTINGS,
    effective_settings,
)
from warmlog.broker.settings.types import as_text
from warmlog.cli.root import root
from warmlog.protocol.kafka.api import APIS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SERVED = ROOT / "tests" / "fixtures" / "kafka" / "4.4.0" / "served.json"
#: Page to the generated blocks on it, in order.
PAGES: Mapping[Path, tuple[str, ...]] = {
    DOCS / "kafka-compatibility.md": ("apis",),
    DOCS / "settings.md": ("broker-settings", "topic-settings", "fixed-settings"),
    DOCS / "metrics.md": ("metrics", "cluster-metrics", "partition-metrics"),
    DOCS / "command-line.md": ("commands",),
    DOCS / "python-api.md": ("python-api",),
    DOCS / "authorization.md": ("authorization",),
    DOCS / "console.md": ("console-endpoints",),
}
Kafka = Mapping[str, Any]  # APIs and settings of a real Kafka, from SERVED
_BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def apis(kafka: Kafka) -> str:
    """List the APIs that are served, with their versions here and in Kafka."""
    rows = []
    for api in APIS:
        first = api.first if api.advertised_from is None else api.advertised_from
        theirs = tuple(kafka["apis"][str(api.key)])
        same = "the same" if theirs == (first, api.last) else versions(*theirs)
        refused = "" if first == api.first else f" (below {api.first} refused, as in Kafka)"
        rows.append((str(api.key), api.name, versions(first, api.last) + refused, same))
    return table(("key", "API", "versions", "in Kafka 4.4.0"), rows)


def versions(first: int, last: int) -> str:
    """Write a range of versions."""
    return str(first) if first == last else f"{first} to {last}"


def authorization(_: Kafka) -> str:
    """List the permissions that each API requires."""
    rows = [(row.name, row.needs, row.missing) for row in sorted(ROWS.values(), key=lambda row: row.name.lower())]
    rows += [(f"HTTP: {path}", f"{each.name} Cluster", "status 403") for path, each in HTTP_PATHS.items()]
    return table(("API", "needs", "without it"), rows)


def console_endpoints(_: Kafka) -> str:
    """List the endpoints of the console, with their parameters, results and required permissions."""
    rows = []
    for each in ROUTES:
        parameters = "; ".join(f"`{name}`: {meaning}" for name, meaning in each.parameters.items())
        takes = "" if each.takes is None else f" Body: `{each.takes.__name__}`."
        returns = "bytes" if each.returns is None else f"`{each.returns.__name__}`"
        summary = f"{each.summary}{takes} {parameters}".strip()
        rows.append((f"`{each.method} /api/v1/{each.path}`".replace("/`", "`"), summary, returns, each.needs))
    return table(("endpoint", "what it does", "returns", "needs"), rows)


def topic_settings(_: Kafka) -> str:
    """List the settings of topics."""
    values = {setting.name: setting.value for setting in effective_settings({}, LiveSettings(Settings()))}
    rows = [
        (code(name), default_of(name, values[name]), code(setting.broker), documentation_of(name) or "")
        for name, setting in sorted(TOPIC_SETTINGS.items())
    ]
    rows += [(code(name), shown(""), "", documentation_of(name) or "") for name in REPLICA_LISTS]
    rows.append((code(TAKES_DEAD_LETTERS), code("false"), "", documentation_of(TAKES_DEAD_LETTERS) or ""))
    return table(("setting", "default", "broker's setting", "meaning"), rows)


def fixed_settings(_: Kafka) -> str:
    """List the settings of topics that accept only one value."""
    rows = [
        (code(name), shown(setting.value), documentation_of(name) or "")
        for name, setting in sorted(FIXED_SETTINGS.items())
    ]
    return table(("setting", "accepted", "why"), rows)


def broker_settings(kafka: Kafka) -> str:
    """List the settings of the broker."""
    rows = []
    for name, field in sorted(FIELDS.items()):
        theirs = kafka["broker"].get(name)
        default = as_text(field.default)
        is_same = theirs is None or name == MIN_ISR or theirs["default"] in {default, None}
        differs = "" if is_same else f" (Kafka: {shown(theirs['default'])})"
        when = "immediately" if name in DYNAMIC_SETTINGS else "at startup"
        rows.append((code(name), default_of(name, default) + differs, when, documentation_of(name) or ""))
    return table(("setting", "default", "takes effect", "meaning"), rows)


def default_of(name: str, default: str | None) -> str:
    """Write a setting's default, or the setting used instead if it is not set."""
    if name == MIN_ISR:
        return f"{code('1')}, or {code('2')}"
    if default is None:
        return f"value of {code(STAND_INS[name][0])}"
    return shown(default)


def shown(value: str | None) -> str:
    """Write a value for a table."""
    return code(value) if value else "(empty)"


class Metric(NamedTuple):
    """A declaration of a metric in the code."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


@cache
def declared_metrics() -> tuple[Metric, ...]:
    """Return every metric that a module of the broker declares, found in the source by its literal name."""
    return tuple(_declarations())


def _declarations() -> Iterator[Metric]:
    kinds = {name: name for name in ("gauge", "counter", "histogram")}
    kinds |= {"CounterFamily": "counter", "HistogramFamily": "histogram"}
    for path in sorted((ROOT / "broker").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Dict):
                yield from tabled_gauges(call)
            if not isinstance(call, ast.Call) or not call.args:
                continue
            function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            literals = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
            if function in kinds and literals and str(literals[0]).startswith("warmlog_"):
                name, help_text = literals
                last = call.args[-1]
                labels = ast.literal_eval(last) if isinstance(last, ast.Tuple) else ()
                if path.stem == "partition_metrics" or str(name).startswith("warmlog_mirror_lag_"):
                    labels = LABELS
                yield Metric(name, kinds[function], labels, help_text)


def tabled_gauges(found: ast.Dict) -> Iterator[Metric]:
    """Yield the gauges of a table of names with their help texts."""
    for key, value in zip(found.keys, found.values, strict=True):
        name = key.value if isinstance(key, ast.Constant) else ""
        if isinstance(name, str) and name.startswith("warmlog_") and isinstance(value, ast.Tuple):
            help_text = ast.literal_eval(value.elts[0])
            yield Metric(name, "gauge", (), help_text)


def is_of_cluster(metric: Metric) -> bool:
    """Return whether a metric is exported only in a cluster."""
    is_of_store = metric.name.startswith("warmlog_cluster_store_") and not metric.name.endswith("silence_seconds")
    return metric.name.startswith(("warmlog_cluster_", "warmlog_replication_")) and not is_of_store


def metrics(_: Kafka) -> str:
    """List the metrics that are always exported."""
    return metric_table(
        metric for metric in declared_metrics() if metric.labels != LABELS and not is_of_cluster(metric)
    )


def cluster_metrics(_: Kafka) -> str:
    """List the metrics of a broker in a cluster."""
    return metric_table(metric for metric in declared_metrics() if is_of_cluster(metric))


def partition_metrics(_: Kafka) -> str:
    """List the metrics that have a series per partition."""
    return metric_table(metric for metric in declared_metrics() if metric.labels == LABELS)


def metric_table(found: Iterable[Metric]) -> str:
    """Write metrics as a table, sorted by name."""
    rows = [
        (code(metric.name), metric.kind, ", ".join(map(code, metric.labels)) or "none", metric.help)
        for metric in sorted(found)
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


def commands(_: Kafka) -> str:
    """Describe every command: usage, help text, options."""
    return "\n".join(
        command_section(context) for context in runnable_commands(click.Context(root, info_name="warmlog"))
    )


def runnable_commands(context: click.Context) -> Iterator[click.Context]:
    """Yield a context for each command, and for each group that is itself runnable, in the order of `--help`."""
    if not isinstance(context.command, click.Group):
        yield context
        return
    if context.command.invoke_without_command:
        yield context
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        assert command is not None
        yield from runnable_commands(click.Context(command, info_name=name, parent=context))


def command_section(context: click.Context) -> str:
    """Describe one command as a section of the page."""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None and "--help" not in parameter.opts:
            rows.append((code(record[0]).replace("|", "\\|"), " ".join(record[1].split())))
    options = f"\n{table(('option', 'meaning'), rows)}" if rows else ""
    paragraphs = "\n\n".join(map(paragraph, inspect.cleandoc(command.help or "").split("\n\n")))
    return f"## {context.command_path}\n\n```text\n{usage}\n```\n\n{paragraphs}\n{options}"


def paragraph(text: str) -> str:
    """Convert a paragraph of a help text to Markdown; one that click must not wrap becomes a code block."""
    if text.startswith("\b\n"):
        return f"```text\n{text[2:]}\n```"
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def code(text: str) -> str:
    """Mark text as code."""
    return f"`{text}`"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table in Markdown."""
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


BLOCKS: Mapping[str, Callable[[Kafka], str]] = {
    "apis": apis,
    "authorization": authorization,
    "topic-settings": topic_settings,
    "fixed-settings": fixed_settings,
    "broker-settings": broker_settings,
    "metrics": metrics,
    "cluster-metrics": cluster_metrics,
    "partition-metrics": partition_metrics,
    "commands": commands,
    "console-endpoints": console_endpoints,
    "python-api": lambda _: python_api(),
}


def generated(document: str) -> str:
    """Return a page with its generated blocks updated from the code. Raises KeyError for an unknown block."""
    kafka = json.loads(SERVED.read_text())
    return _BLOCK.sub(lambda block: block[1] + BLOCKS[block[2]](kafka) + block[3], document)


def main() -> None:
    """Rewrite the pages."""
    for page in PAGES:
        page.write_text(generated(page.read_text()))


if __name__ == "__main__":
    main()
