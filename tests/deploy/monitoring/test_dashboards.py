"""Dashboards: as the program writes them, in the form that Grafana reads, and each graph explained."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.deploy.files import DASHBOARDS, DEPLOY, ROOT, load, panels

GRAFANA = DEPLOY / "grafana"
MONITORING = (ROOT / "docs" / "monitoring.md").read_text()


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboards_program", GRAFANA / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_program_writes(program: ModuleType) -> None:
    written = program.files()
    assert set(written) == set(DASHBOARDS)
    for path, text in written.items():
        assert path.read_text() == text, f"run deploy/grafana/dashboards.py: {path.name}"


def test_the_documentation_explains_every_graph(program: ModuleType) -> None:
    assert program.documented(MONITORING) == MONITORING, "run deploy/grafana/dashboards.py"
    titles = [panel["title"] for path in DASHBOARDS for panel in panels(path)]
    assert [title for title in titles if f"| {title} |" not in MONITORING] == []


def provisioned() -> tuple[dict[str, Any], dict[str, Any]]:
    (source,) = load(GRAFANA / "provisioning" / "datasources" / "prometheus.yaml")["datasources"]
    (provider,) = load(GRAFANA / "provisioning" / "dashboards" / "warmlog.yaml")["providers"]
    return source, provider


def sources_in(value: Any) -> list[dict[str, str]]:
    """Every data source that is named anywhere."""
    if isinstance(value, list):
        return [found for each in value for found in sources_in(each)]
    if not isinstance(value, dict):
        return []
    own = [value["datasource"]] if "datasource" in value else []
    return own + [found for each in value.values() for found in sources_in(each)]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_grafana_finds_what_it_needs(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    source, _ = provisioned()
    assert dashboard["uid"] == f"warmlog-{path.stem}"
    assert len(dashboard["uid"]) <= 40  # Grafana's limit
    assert dashboard["schemaVersion"] >= 36  # the first whose data sources are objects
    assert dashboard["title"]
    assert "id" not in dashboard  # the database's, which a file must not claim
    assert all(found == {"type": source["type"], "uid": source["uid"]} for found in sources_in(dashboard))
    (variable,) = dashboard["templating"]["list"]
    assert variable["name"] == "instance"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels(path):
        assert panel["type"] in {"timeseries", "stat", "heatmap"}
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
        assert all(target["expr"] and target["datasource"] for target in panel["targets"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_no_panel_covers_another(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        taken |= cells


def test_uids_are_unique_and_the_provider_looks_where_compose_mounts_them() -> None:
    uids = [json.loads(path.read_text())["uid"] for path in DASHBOARDS]
    assert len(set(uids)) == len(uids)
    source, provider = provisioned()
    grafana = load(DEPLOY / "compose.yaml")["services"]["grafana"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/overview.json"
    assert source["url"] == "http://prometheus:9090"
    interval = load(DEPLOY / "prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
