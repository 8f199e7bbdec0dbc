"""The pages for operators name existing settings and graphs only."""

import json
import re

from tests.deploy.files import DASHBOARDS, ROOT
from warmlog.broker.settings.settings import FIELDS
from warmlog.broker.settings.topics import TOPIC_SETTINGS

DOCS = ROOT / "docs"
TUNING = (DOCS / "capacity.md").read_text().partition("\n## What should I tune?\n")[2].partition("\n## ")[0]
FIRST_LOOK = (DOCS / "monitoring.md").read_text().partition("\n## ")[0]
ALERTS = (DOCS / "alerts.md").read_text()


def settings_in(text: str) -> set[str]:
    """Words of code that look like a setting: lower case, with dots."""
    return set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=[^`]*)?`", text))


def test_settings_that_are_named_are_settings() -> None:
    of_clients = {"session.timeout.ms", "max.poll.interval.ms", "fetch.max.wait.ms"}
    known = FIELDS.keys() | TOPIC_SETTINGS.keys() | of_clients
    files = {name for name in settings_in(TUNING + ALERTS) if name.endswith((".md", ".yml", ".toml", ".py"))}
    assert settings_in(TUNING) >= {"log.retention.bytes", "warmlog.gate.threads"}
    assert {name for name in settings_in(TUNING + ALERTS) if "_" not in name} - files - known == set()


def test_graphs_that_are_named_are_graphs() -> None:
    titles = {panel["title"] for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]}
    listed = set(re.findall(r"(?<!\*)\*([A-Z][^*\n]+)\*(?!\*)", TUNING + FIRST_LOOK + ALERTS))
    severities = {"Critical.", "Warning.", "Info."}
    others = {"OOMKilled", "Targets"}  # Kubernetes' word, and Prometheus' page
    assert listed - titles - severities - others == set()
