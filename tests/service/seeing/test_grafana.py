"""Dashboards and alerts: as code, valid, and answered by a real Prometheus that scrapes a live service."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import jsonschema
import pytest
import yaml
from scripts.dashboards.__main__ import FOLDER, files
from tests.service.seeing.live import LiveService, live_service
from tests.service.seeing.prometheus import Prometheus, metric_names, need, prometheus

from optimus_service.metrics.families import families

ROOT = Path(__file__).parents[3]
RULES = ROOT / "helm" / "optimus" / "rules" / "optimus.rules.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks"
DASHBOARDS = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every panel's title and one of its expressions."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def filled_in(expression: str) -> str:
    """With what Grafana puts in place of its variables: an interval in which all that the tests do has its place."""
    return expression.replace("$__rate_interval", "5m").replace("$job", ".+")


# --- as code ---------------------------------------------------------------------------------------------------------


def test_the_dashboards_are_what_the_code_says() -> None:
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == {
        path.name: text for path, text in files().items()
    }, "run `python -m scripts.dashboards`"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_what_grafana_imports(name: str) -> None:
    folder = os.environ.get("OPTIMUS_GRAFANA_SCHEMA")
    if folder is None:
        pytest.skip("OPTIMUS_GRAFANA_SCHEMA does not name a file with Grafana's schema of dashboards")
    schemas = json.loads(Path(folder).read_text())
    jsonschema.Draft7Validator(schemas["dashboard"]).validate(DASHBOARDS[name])
    for panel in DASHBOARDS[name]["panels"]:
        if panel["type"] != "row":
            of_kind = schemas[panel["type"]]
            jsonschema.Draft7Validator(of_kind["Options"]).validate(panel["options"])
            custom = panel["fieldConfig"]["defaults"].get("custom", {})
            jsonschema.Draft7Validator(of_kind["FieldConfig"]).validate(custom)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_beside_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_only_metrics_that_exist_are_asked_for() -> None:
    known = {f"{family.name}{end}" for family in families() for end in ("", "_bucket", "_sum", "_count")}
    asked = [expression for dashboard in DASHBOARDS.values() for _, expression in expressions(dashboard)]
    asked += [rule["expr"] for rule in ALERTS]
    assert set().union(*map(metric_names, asked)) <= known


# --- alerts ----------------------------------------------------------------------------------------------------------


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    named = {rule["alert"] for rule in ALERTS}
    assert named == {path.stem for path in RUNBOOKS.glob("Optimus*.md")}
    assert all(f"({name}.md)" in (RUNBOOKS / "README.md").read_text() for name in named)


def test_the_link_of_every_alert_opens_its_runbook_without_a_token(tmp_path: Path) -> None:
    """With a token set: people follow the link in a browser, which has none."""
    with live_service(tmp_path, token="a token of sixteen", history_seconds=0) as service:
        for rule in ALERTS:
            link = urlsplit(rule["annotations"]["runbook_url"])
            answer = httpx.get(f"{service.url}{link.path}", trust_env=False, timeout=60)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert f"<title>{rule['alert']}</title>" in answer.text
            for other in re.findall('href="([^"]*)"', answer.text):
                assert httpx.get(f"{service.url}{other}", trust_env=False, timeout=60).status_code == 200
        assert httpx.get(f"{service.url}/runbooks/OptimusNothing", trust_env=False, timeout=60).status_code == 404


def test_the_rules_are_what_prometheus_reads() -> None:
    done = subprocess.run([need("promtool"), "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_only_then() -> None:
    tests = Path(__file__).parent / "alerts.test.yaml"
    done = subprocess.run([need("promtool"), "test", "rules", tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- on a real Prometheus --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    need("prometheus")
    with live_service(tmp_path_factory.mktemp("live"), history_seconds=330) as service:
        yield service


@pytest.fixture(scope="module")
def scraped(live: LiveService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """After a job began and ended while it was watched."""
    with prometheus(tmp_path_factory.mktemp("prometheus"), live.url.removeprefix("http://"), RULES) as running:
        running.wait_for("count_over_time(optimus_leader[1m]) >= 3 and optimus_leader == 1")
        rule = {"loss_decrease": {"below": 0.01}, "max_steps": 10}
        live.world.submit("sprint-1", name="sprint", workers={"max": 1}, servers={"max": 1}, convergence=rule)
        live.world.submit("large-1", name="large", workers={"max": 1, "resources": {"cpu": 1000}}, servers={"max": 1})
        # Room for this one has to be made: others stop for a moment and go on smaller.
        live.world.submit("wide-1", name="wide", workers={"min": 6, "max": 6}, servers={"max": 1}, convergence=rule)
        live.loop.trigger("submit")
        running.wait_for("rate(optimus_rescale_pause_seconds_count[30s]) > 0")
        running.wait_for('increase(optimus_job_completion_seconds_count{outcome="succeeded"}[1m]) > 0')
        running.wait_for("rate(optimus_round_seconds_count[30s]) > 0")
        running.wait_for("count(optimus_job_waiting_since_timestamp_seconds) > 0")
        # Whoever was made smaller has measured its new size, and may grow again; it need not wait for a round.
        running.wait_for("count(optimus_job_next_gain) > 0", before=lambda: live.loop.trigger("changed pace"))
        yield running


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_shows_something(scraped: Prometheus, name: str) -> None:
    empty = []
    for title, expression in expressions(DASHBOARDS[name]):
        found = scraped.query(filled_in(expression))
        if not any(not math.isnan(float(sample["value"][1])) for sample in found):
            empty.append((title, expression))
    assert empty == []


def test_every_variable_has_values(scraped: Prometheus) -> None:
    queries = [
        each for name in DASHBOARDS for each in DASHBOARDS[name]["templating"]["list"] if each["type"] == "query"
    ]
    assert [each["query"] for each in queries] == ["label_values(optimus_job_info, job_id)"]
    assert {sample["metric"]["job_id"] for sample in scraped.query("optimus_job_info")}


def test_every_alert_can_be_answered_and_none_fires(scraped: Prometheus) -> None:
    for rule in ALERTS:
        scraped.query(rule["expr"])
        for metric in metric_names(rule["expr"]):
            assert scraped.query(f"count({metric})"), (rule["alert"], metric)
    rules = scraped.client.get("/api/v1/rules").json()["data"]["groups"]
    states = {rule["name"]: (rule["health"], rule["state"]) for group in rules for rule in group["rules"]}
    assert set(states) == {rule["alert"] for rule in ALERTS}
    assert {health for health, _ in states.values()} == {"ok"}
    assert {name for name, (_, state) in states.items() if state == "firing"} == set()
