"""The chart, offline: lint, schema of values, today's API models, settings that the service accepts, safe defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from helm_python import Chart, HelmError
from helm_python.chart import lint
from kubernetes import client
from tests.helm.chart import CHART, EVERYTHING, REQUIRED, VARIANTS, objects, only

from optimus_service.settings import Settings

Json = dict[str, Any]
_ERROR_SEVERITY = 2
MODELS: dict[str, Any] = {
    "ClusterRole": client.V1ClusterRole,
    "ClusterRoleBinding": client.V1ClusterRoleBinding,
    "ConfigMap": client.V1ConfigMap,
    "CustomResourceDefinition": client.V1CustomResourceDefinition,
    "Deployment": client.V1Deployment,
    "HorizontalPodAutoscaler": client.V2HorizontalPodAutoscaler,
    "Job": client.V1Job,
    "NetworkPolicy": client.V1NetworkPolicy,
    "PersistentVolumeClaim": client.V1PersistentVolumeClaim,
    "Pod": client.V1Pod,
    "PodDisruptionBudget": client.V1PodDisruptionBudget,
    "Role": client.V1Role,
    "RoleBinding": client.V1RoleBinding,
    "Service": client.V1Service,
    "ServiceAccount": client.V1ServiceAccount,
}
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule"}


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
def test_lint_finds_nothing(values: Json) -> None:
    report = lint(CHART, values, strict=True, namespace="ml")
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] >= _ERROR_SEVERITY] == []


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
def test_objects_are_valid_by_todays_models(values: Json) -> None:
    found = objects(values)
    assert len(found) >= 4
    for each in found:
        if each["kind"] not in OF_OPERATORS:
            MODELS[each["kind"]].model_validate(each)
        if not each["kind"].startswith(("ClusterRole", "CustomResource")):
            assert each["metadata"]["namespace"] == "ml"


@pytest.mark.parametrize(
    "values",
    [
        {**REQUIRED, "replica": 3},
        {**REQUIRED, "replicas": "three"},
        {**REQUIRED, "tasks": {"gang": "mpi"}},
        {**REQUIRED, "tasks": {"podSecurity": {"runAsUser": 0}}},
        {**REQUIRED, "image": {"repository": ""}},
    ],
)
def test_wrong_values_are_refused(values: Json) -> None:
    with pytest.raises(HelmError):
        Chart.load(CHART).render(values, name="demo", namespace="ml")


def test_a_missing_secret_is_told_with_the_way_out() -> None:
    with pytest.raises(HelmError, match="existingSecret is required"):
        objects({})


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_service_accepts_its_settings(values: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = only(objects(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        if not variable.get("valueFrom", {}).get("secretKeyRef", {}).get("optional"):
            monkeypatch.setenv(variable["name"], variable.get("value", "sixteen-characters-of-a-secret"))
    monkeypatch.setenv("OPTIMUS_DATABASE_URL", "postgresql://nowhere/optimus")
    found = Settings()
    kubernetes, tasks = found.kubernetes, values.get("tasks", {})
    assert (found.cluster, kubernetes.namespace, kubernetes.instance) == ("kubernetes", "ml", "demo")
    assert kubernetes.service_account == only(objects(values), "Deployment")["metadata"]["name"] + "-task"
    assert kubernetes.node_selector == tasks.get("nodeSelector", {})
    everything = ("registry.example/worker:2-cuda", "registry.example/server:0.1.0")
    assert (kubernetes.image, kubernetes.server_image) == (
        everything if values is EVERYTHING else ("optimus-worker:0.1.0", None)
    )
    assert kubernetes.jobs_claim == tasks.get("jobs", {}).get("existingClaim", "demo-optimus-jobs")
    assert kubernetes.training_jobs is values.get("trainingJobs", {}).get("enabled", True)
    assert kubernetes.unschedulable_seconds == (30 if values is EVERYTHING else 60)


def pod_specs(found: list[Json]) -> dict[str, Json]:
    specs = {each["kind"]: each["spec"] for each in found if each["kind"] == "Pod"}
    return specs | {
        each["kind"]: each["spec"]["template"]["spec"] for each in found if each["kind"] in ("Deployment", "Job")
    }


def test_pods_have_no_privileges() -> None:
    specs = pod_specs(objects(EVERYTHING))
    assert set(specs) == {"Pod", "Deployment", "Job"}
    for kind, spec in specs.items():
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["enableServiceLinks"] is False
        assert spec["automountServiceAccountToken"] is (kind == "Deployment")
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_secrets_are_never_values() -> None:
    for spec in pod_specs(objects(EVERYTHING)).values():
        for variable in spec["containers"][0]["env"]:
            if variable["name"] in ("OPTIMUS_TOKEN", "OPTIMUS_SECRET", "OPTIMUS_DATABASE_URL"):
                assert variable["valueFrom"]["secretKeyRef"]["name"] == "optimus"
    assert not [each for each in objects(EVERYTHING) if each["kind"] == "Secret"]


def test_two_replicas_that_may_not_be_taken_together() -> None:
    found = objects(REQUIRED)
    assert only(found, "Deployment")["spec"]["replicas"] == 2
    assert only(found, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    assert "replicas" not in only(objects(EVERYTHING), "Deployment")["spec"]  # the autoscaler's


def test_selectors_of_the_service_and_of_tasks_do_not_overlap() -> None:
    found = objects(REQUIRED)
    selector = only(found, "Service")["spec"]["selector"]
    labels = only(found, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    policies = {
        each["metadata"]["name"]: each["spec"]["podSelector"]["matchLabels"]
        for each in found
        if each["kind"] == "NetworkPolicy"
    }
    assert policies["demo-optimus"].items() <= labels.items()
    assert not policies["demo-optimus-tasks"].items() <= labels.items()


def test_rules_and_dashboards_come_as_they_are() -> None:
    found = objects(EVERYTHING)
    rules = {path.name: yaml.safe_load(path.read_text()) for path in (CHART / "rules").glob("*.yaml")}
    made = [each["spec"] for each in found if each["kind"] == "PrometheusRule"]
    in_cluster = ("'http://127.0.0.1:8080/runbooks/", "'http://demo-optimus.ml.svc:8080/runbooks/")
    assert sorted(map(str, made)) == sorted(str(each).replace(*in_cluster) for each in rules.values())
    dashboards = {path.name: path.read_text() for path in (CHART / "dashboards").glob("*.json")}
    configs = [each for each in found if each["kind"] == "ConfigMap"]
    assert {name: json.loads(text) for each in configs for name, text in each["data"].items()} == {
        name: json.loads(text) for name, text in dashboards.items()
    }
    assert len(configs) == len(dashboards) > 0
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in configs)
    assert not [each for each in objects(REQUIRED) if each["kind"] in ("PrometheusRule", "ServiceMonitor", "ConfigMap")]


def test_alerts_link_to_where_people_reach_the_service() -> None:
    rule = {"enabled": True, "runbooksUrl": "https://optimus.example/runbooks/"}
    made = only(objects({**EVERYTHING, "monitoring": {"prometheusRule": rule}}), "PrometheusRule")["spec"]
    links = {
        alert["alert"]: alert["annotations"]["runbook_url"] for group in made["groups"] for alert in group["rules"]
    }
    assert links == {name: f"https://optimus.example/runbooks/{name}" for name in links}


def test_prometheus_shows_the_token_that_metrics_ask_for() -> None:
    (endpoint,) = only(objects(EVERYTHING), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "optimus", "key": "token"}}
