"""Dashboards as Grafana's JSON: what is the same around all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from scripts.dashboards.model import Dashboard, Panel, Query

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 41
WIDTH = 24


def document(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["optimus"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "timezone": "browser",
        "links": [
            {
                "title": "Optimus",
                "type": "dashboards",
                "tags": ["optimus"],
                "asDropdown": False,
                "keepTime": True,
                "includeVars": False,
                "targetBlank": False,
                "icon": "dashboard",
                "tooltip": "",
                "url": "",
            }
        ],
        "annotations": {"list": []},
        "templating": {"list": [_source_variable(), *(_variable(*each) for each in dashboard.variables)]},
        "panels": list(_panels(dashboard)),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "label": "Data source", "query": "prometheus", "hide": 0}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "label": name.capitalize(),
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "sort": 1,
        "multi": False,
        "includeAll": False,
        "hide": 0,
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for title, panels in dashboard.sections:
        yield _row(number, title, top)
        number, top = number + 1, top + 1
        left = line = 0
        for panel in panels:
            if left + panel.width > WIDTH:
                left, top, line = 0, top + line, 0
            yield _panel(number, panel, left, top)
            number, left, line = number + 1, left + panel.width, max(line, panel.height)
        top += line


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
        "panels": [],
    }


def _panel(number: int, panel: Panel, left: int, top: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.thresholds:
        steps = [{"color": colour, "value": None if value == 0 else value} for colour, value in panel.thresholds]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.kind == "timeseries":
        defaults["custom"] = _lines(panel)
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": list(_targets(panel.queries, instant=panel.kind != "timeseries")),
    }


def _lines(panel: Panel) -> dict[str, Any]:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "lineInterpolation": "stepAfter" if panel.stacked else "linear",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }


_LAST = {"values": False, "calcs": ["lastNotNull"], "fields": ""}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": _LAST,
        "orientation": "auto",
        "textMode": "value",
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "center",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    },
    "bargauge": {
        "reduceOptions": _LAST,
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "text",
        "namePlacement": "left",
        "sizing": "auto",
        "showUnfilled": True,
        "minVizWidth": 8,
        "minVizHeight": 16,
        "maxVizHeight": 40,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
    },
}


def _targets(queries: Iterable[Query], *, instant: bool) -> Iterator[dict[str, Any]]:
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        yield {
            "refId": letter,
            "datasource": SOURCE,
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "range": not instant,
            "instant": instant,
        }
