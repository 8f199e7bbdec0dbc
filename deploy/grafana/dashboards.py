"""Write Grafana's dashboards and the tables of graphs in docs/monitoring.md from dashboards.toml.

Queries and texts are in dashboards.toml; this program decides on the layout. The dashboards refer to their data source
by the uid in provisioning/datasources.

    python deploy/grafana/dashboards.py        # needs nothing but Python 3.11
"""

import json
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCUMENT = HERE.parent.parent / "docs" / "monitoring.md"
BEGIN, END = "<!-- graphs: written by deploy/grafana/dashboards.py -->\n", "<!-- end of graphs -->\n"
DATA_SOURCE = {"type": "prometheus", "uid": "warmlog-prometheus"}
SCHEMA_VERSION = 39  # Grafana 11; later ones migrate it when they load it
WIDTH, COLUMNS = 24, 3  # Grafana's grid, and how many graphs stand beside each other
HEIGHT = {"stat": 4, "timeseries": 8, "heatmap": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One panel. `asks` are (PromQL, legend) pairs; `means` is its text in Grafana and in the documentation."""

    title: str
    unit: str
    means: str
    asks: list[tuple[str, str]]
    kind: str = "timeseries"
    stacked: bool = False
    signed: bool = False
    red_from: float | None = None
    red_below: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under a heading."""

    title: str
    graphs: list[Graph]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One file."""

    name: str
    title: str
    means: str
    rows: list[Row]


def dashboards() -> list[Dashboard]:
    """Read dashboards.toml."""
    found = tomllib.loads((HERE / "dashboards.toml").read_text())["dashboard"]
    return [
        Dashboard(
            name=each["name"],
            title=each["title"],
            means=each["means"],
            rows=[Row(title=row["title"], graphs=[Graph(**graph) for graph in row["graph"]]) for row in each["row"]],
        )
        for each in found
    ]


def panel(graph: Graph, number: int, place: dict[str, int]) -> dict[str, Any]:
    """Return a graph as a Grafana panel."""
    targets = [
        {"refId": chr(ord("A") + index), "datasource": DATA_SOURCE, "expr": expr, "legendFormat": legend or "__auto"}
        | ({"format": "heatmap"} if graph.kind == "heatmap" else {})
        for index, (expr, legend) in enumerate(graph.asks)
    ]
    return {
        "id": number,
        "type": graph.kind,
        "title": graph.title,
        "description": graph.means,
        "datasource": DATA_SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": defaults(graph), "overrides": []},
        "options": options(graph),
    }


def defaults(graph: Graph) -> dict[str, Any]:
    """Return a panel's unit, thresholds and line style."""
    made: dict[str, Any] = {"unit": graph.unit} | ({} if graph.signed else {"min": 0})
    if graph.kind == "stat":
        made["thresholds"] = {"mode": "absolute", "steps": steps(graph)}
    if graph.kind == "timeseries":
        stacking = {"mode": "normal" if graph.stacked else "none", "group": "A"}
        made["custom"] = {"fillOpacity": 30 if graph.stacked else 5, "showPoints": "never", "stacking": stacking}
    return made


def steps(graph: Graph) -> list[dict[str, Any]]:
    """Return the colors of a stat, from the lowest value up."""
    if graph.red_from is not None:
        return [{"color": "green", "value": None}, {"color": "red", "value": graph.red_from}]
    if graph.red_below is not None:
        return [{"color": "red", "value": None}, {"color": "green", "value": graph.red_below}]
    return [{"color": "text", "value": None}]


def options(graph: Graph) -> dict[str, Any]:
    """Return the options of a panel by its kind."""
    if graph.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value"}
    if graph.kind == "heatmap":
        return {"calculate": False, "yAxis": {"unit": graph.unit}, "color": {"mode": "scheme", "scheme": "Oranges"}}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}


def panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """Rows and graphs, laid out from the top."""
    number, top = 1, 0
    for row in dashboard.rows:
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        number, top = number + 1, top + 1
        columns = len(row.graphs) if row.graphs[0].kind == "stat" else COLUMNS
        height, width = HEIGHT[row.graphs[0].kind], WIDTH // columns
        for index, graph in enumerate(row.graphs):
            down, right = divmod(index, columns)
            place = {"h": height, "w": width, "x": right * width, "y": top + down * height}
            yield panel(graph, number, place)
            number += 1
        top += -(-len(row.graphs) // columns) * height


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it from a file."""
    variable = {
        "name": "instance",
        "label": "Broker",
        "type": "query",
        "datasource": DATA_SOURCE,
        "query": {"query": "label_values(warmlog_ready, instance)", "refId": "instance"},
        "refresh": 2,  # when the time range changes
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
    links = {
        "type": "dashboards",
        "title": "warmlog",
        "tags": ["warmlog"],
        "icon": "external link",
        "tooltip": "The other dashboards of warmlog",
        "asDropdown": False,
        "targetBlank": False,
        "keepTime": True,
        "includeVars": True,
    }
    return {
        "uid": f"warmlog-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.means,
        "tags": ["warmlog"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,  # the crosshair goes through all graphs
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [variable]},
        "annotations": {"list": []},
        "links": [links],
        "panels": list(panels(dashboard)),
    }


def files() -> dict[Path, str]:
    """Every file that Grafana reads, and its text."""
    return {
        HERE / "dashboards" / f"{dashboard.name}.json": json.dumps(document(dashboard), indent=1) + "\n"
        for dashboard in dashboards()
    }


def tables() -> str:
    """Return the section of the documentation that explains the graphs."""
    lines = []
    for dashboard in dashboards():
        lines += [f"## {dashboard.title}", "", textwrap.fill(dashboard.means, 120, break_on_hyphens=False), ""]
        lines += ["| graph | what it means |", "|---|---|"]
        lines += [f"| {graph.title} | {graph.means} |" for row in dashboard.rows for graph in row.graphs]
        lines.append("")
    return "\n".join(lines)


def documented(text: str) -> str:
    """Return docs/monitoring.md with its generated section replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def main() -> None:
    """Write all of it."""
    for path, text in files().items():
        path.write_text(text)
    DOCUMENT.write_text(documented(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
