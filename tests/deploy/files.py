"""What the files of deploy/ ask Prometheus."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
NODE_DASHBOARDS = [path for path in DASHBOARDS if path.stem not in {"cluster", "mirror"}]
MIRROR_DASHBOARDS = [path for path in DASHBOARDS if path.stem == "mirror"]
OPTIONAL = {"warmlog-cluster", "warmlog-mirror"}  # groups of alerts whose metrics not every broker has
CLUSTER_DASHBOARDS = [path for path in DASHBOARDS if path.stem == "cluster"]
_SELECTOR = re.compile(r"\b((?:warmlog|process)_\w+|up)\b(\{[^}]*\})?")


def load(path: Path) -> Any:
    """A YAML document."""
    return yaml.safe_load(path.read_text())


def alerts() -> list[dict[str, Any]]:
    """Every rule of alerts.yml."""
    return node_alerts() + mirror_alerts() + cluster_alerts()


def node_alerts() -> list[dict[str, Any]]:
    """Return the rules about brokers."""
    return [rule for group in _groups() if group["name"] not in OPTIONAL for rule in group["rules"]]


def mirror_alerts() -> list[dict[str, Any]]:
    """Return the rules about mirrors."""
    return [rule for group in _groups() if group["name"] == "warmlog-mirror" for rule in group["rules"]]


def cluster_alerts() -> list[dict[str, Any]]:
    """Return the rules about clusters."""
    return [rule for group in _groups() if group["name"] == "warmlog-cluster" for rule in group["rules"]]


def _groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = load(DEPLOY / "alerts.yml")["groups"]
    return groups


def panels(dashboard: Path) -> list[dict[str, Any]]:
    """The panels of a dashboard that show something."""
    return [panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row"]


def asked(dashboards: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield (dashboard and panel, PromQL) for every target of dashboards."""
    for dashboard in dashboards:
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield f"{dashboard.stem}: {panel['title']}", target["expr"]


def selectors(expression: str) -> list[str]:
    """The metrics that an expression names, with their matchers."""
    return ["".join(found) for found in _SELECTOR.findall(expression)]


def names(expression: str) -> set[str]:
    """The metrics that an expression names."""
    return {name for name, _ in _SELECTOR.findall(expression)}
