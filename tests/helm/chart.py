"""The chart, rendered by Helm's own engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

CHART = Path(__file__).resolve().parents[2] / "helm" / "optimus"
Json = dict[str, Any]
REQUIRED: Json = {"existingSecret": "optimus"}
EVERYTHING: Json = {
    **REQUIRED,
    "imagePullSecrets": ["registry"],
    "autoscaling": {"enabled": True},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "podAnnotations": {"note": "hello"},
    "podLabels": {"team": "platform"},
    "extraEnv": [{"name": "OPTIMUS_KEEP_SECONDS", "value": "86400"}],
    "service": {"type": "NodePort", "annotations": {"note": "hello"}, "clusterIP": "10.96.0.50"},
    "tasks": {
        "image": {"repository": "registry.example/worker", "tag": "2-cuda"},
        "serverImage": {"repository": "registry.example/server"},
        "nodeSelector": {"pool": "training"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "training",
        "runtimeClassName": "nvidia",
        "gpuTypes": {"A100": {"resource": "nvidia.com/gpu", "labels": {"nvidia.com/gpu.product": "A100"}}},
        "serviceUrl": "http://10.96.0.50:8080",
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "jobs": {"storageClassName": "fast"},
        "gang": "volcano",
        "extra": {"unschedulable_seconds": 30},
    },
    "networkPolicy": {
        "apiFrom": [{"namespaceSelector": {"matchLabels": {"team": "vision"}}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
        "taskEgress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
}
VARIANTS: dict[str, Json] = {
    "least": REQUIRED,
    "everything": EVERYTHING,
    "plain": {
        **REQUIRED,
        "rbac": {"create": False},
        "serviceAccount": {"create": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "migrations": {"enabled": False},
        "trainingJobs": {"enabled": False},
        "tasks": {"jobs": {"existingClaim": "shared", "create": False}},
    },
}


def objects(values: Json, name: str = "demo", namespace: str = "ml") -> list[Json]:
    """Every object that the chart makes, hooks and tests included."""
    rendered = Chart.load(CHART).render(values, name=name, namespace=namespace)
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def only(found: list[Json], kind: str, component: str | None = None) -> Json:
    """The one object of this kind (and component)."""
    chosen = [
        each
        for each in found
        if each["kind"] == kind
        and component in (None, each["metadata"].get("labels", {}).get("app.kubernetes.io/component"))
    ]
    assert len(chosen) == 1, [each["metadata"]["name"] for each in chosen]
    return chosen[0]
