"""What the files of deploy/ ask Prometheus."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
_SELECTOR = re.compile(r"\b((?:warmlog|process)_\w+|up)\b(\{[^}]*\})?")


def load(path: Path) -> Any:
    """A YAML document."""
    return yaml.safe_load(path.read_text())


def alerts() -> list[dict[str, Any]]:
    """Every rule of alerts.yml."""
    return [rule for group in load(DEPLOY / "alerts.yml")["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    """The panels of a dashboard that show something."""
    return [panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row"]


def asked() -> Iterator[tuple[str, str]]:
    """(which panel, PromQL) of every target of every dashboard."""
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield f"{dashboard.stem}: {panel['title']}", target["expr"]


def selectors(expression: str) -> list[str]:
    """The metrics that an expression names, with their matchers."""
    return ["".join(found) for found in _SELECTOR.findall(expression)]


def names(expression: str) -> set[str]:
    """The metrics that an expression names."""
    return {name for name, _ in _SELECTOR.findall(expression)}
