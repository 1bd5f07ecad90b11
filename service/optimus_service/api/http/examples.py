"""Examples of bodies for the OpenAPI page. A test sends each of them to the service, so they are true."""

from __future__ import annotations

from typing import Any

Examples = dict[str, Any]

_WORKER = "digits-cnn-x7k2p-worker-{}-0"
_SERVER = "digits-cnn-x7k2p-server-{}-0"

JOB_SPECS: Examples = {
    "smallest": {
        "summary": "A name and a task are enough",
        "value": {"name": "digits-mlp", "task": "optimus_workers.zoo.digits:mlp"},
    },
    "typical": {
        "summary": "Its own convergence rule, sizes and resources",
        "value": {
            "name": "digits-cnn",
            "project": "vision",
            "task": "optimus_workers.zoo.digits:cnn",
            "mode": "sync",
            "global_batch_size": 128,
            "convergence": {"loss_decrease": {"below": 0.01, "patience_epochs": 3}, "max_epochs": 60},
            "workers": {"min": 1, "max": 4, "resources": {"cpu": 1, "memory_bytes": "512Mi"}},
            "servers": {"min": 1, "max": 2, "resources": {"cpu": 1, "memory_bytes": "256Mi"}},
            "seed": 7,
        },
    },
    "elastic": {
        "summary": "Without servers; the scheduler chooses the batch as well",
        "value": {
            "name": "digits-elastic",
            "task": "optimus_workers.zoo.digits:mlp",
            "architecture": "allreduce",
            "elastic_batch": {"minimum": 16, "maximum": 256, "per_pass": 64},
            "workers": {"min": 1, "max": 4},
        },
    },
}

CHANGES: Examples = {
    "size": {"summary": "More workers, and sooner", "value": {"workers": {"max": 8}, "priority": 4}},
    "end": {"summary": "Another end", "value": {"convergence": {"max_epochs": 20}, "unset": ["deadline"]}},
}

BATCHES: Examples = {
    "sweep": {
        "summary": "Two jobs that differ in one argument: both are made, or none",
        "value": {
            "jobs": [
                {
                    "name": f"digits-lr-{index}",
                    "task": "optimus_workers.zoo.digits:mlp",
                    "task_args": {"learning_rate": rate},
                    "labels": {"sweep": "digits-lr", "learning_rate": str(rate)},
                }
                for index, rate in enumerate((0.1, 0.03))
            ]
        },
    },
}

SELECTIONS: Examples = {
    "sweep": {"summary": "All that is active of a sweep", "value": {"labels": {"sweep": "digits-lr"}}},
    "any": {"summary": "Whatever the label's value is", "value": {"labels": {"sweep": None}, "project": "vision"}},
}

TELEMETRY: Examples = {
    "two records": {
        "summary": "Ten steps of one worker, and one whose loss is not a number",
        "value": {
            "samples": [
                {
                    "membership_epoch": 1,
                    "rank": 0,
                    "sequence": 0,
                    "workers": 2,
                    "servers": 1,
                    "at": 1760000000.5,
                    "step": 10,
                    "n_steps": 10,
                    "data_epoch": 0.9,
                    "loss": 2.31,
                    "n_examples": 1280,
                    "seconds": 0.52,
                    "compute_seconds": 0.4,
                },
                {
                    "membership_epoch": 1,
                    "rank": 1,
                    "sequence": 0,
                    "workers": 2,
                    "servers": 1,
                    "at": 1760000001.0,
                    "step": 11,
                    "data_epoch": 1.0,
                    "loss": "NaN",
                    "n_examples": 128,
                    "seconds": 0.05,
                },
            ]
        },
    },
    "columns": {
        "summary": "Two records, the values of each field together: the form that costs least",
        "value": {
            "columns": {
                "membership_epoch": [1, 1],
                "rank": [0, 0],
                "sequence": [1, 2],
                "workers": [2, 2],
                "servers": [1, 1],
                "at": [1760000001.0, 1760000001.5],
                "step": [20, 30],
                "n_steps": [10, 10],
                "data_epoch": [1.8, 2.7],
                "loss": [2.1, "NaN"],
                "n_examples": [1280, 1280],
                "seconds": [0.52, 0.5],
            }
        },
    },
    "usage": {
        "summary": "What a server and the coordinator take of their machines",
        "value": {
            "tasks": [
                {"task": _SERVER.format(0), "usage": {"cpu_cores": 0.4, "memory_bytes": 312_000_000}},
                {
                    "task": "digits-cnn-x7k2p-coordinator-0-0",
                    "usage": {"cpu_cores": 0.01, "memory_bytes": 41_000_000},
                },
            ]
        },
    },
}

MEMBERSHIPS: Examples = {
    "start": {
        "summary": "The first membership",
        "value": {
            "epoch": 1,
            "generation": 1,
            "at": 1760000000.0,
            "step": 0,
            "workers": [_WORKER.format(0), _WORKER.format(1)],
            "servers": [_SERVER.format(0)],
            "cause": "start",
        },
    },
    "rescale": {
        "summary": "One more worker; training stood still for 120 ms",
        "value": {
            "epoch": 2,
            "generation": 2,
            "at": 1760000060.0,
            "step": 840,
            "workers": [_WORKER.format(0), _WORKER.format(1), _WORKER.format(2)],
            "servers": [_SERVER.format(0)],
            "cause": "rescale",
            "pause_seconds": 0.12,
        },
    },
}

PROFILES: Examples = {
    "digits": {
        "summary": "A small network on handwritten digits",
        "value": {"n_parameters": 38282, "n_examples": 1437, "global_batch_size": 128, "steps_per_epoch": 11.2},
    }
}

NETWORKS: Examples = {
    "perceptron": {
        "summary": "One hidden layer",
        "value": {
            "format": "optimus-network/1",
            "name": "mlp",
            "layers": [
                {"name": "x", "kind": "input", "shape": [64]},
                {"name": "hidden", "kind": "linear", "parents": ["x"], "features": 128},
                {"name": "relu", "kind": "elementwise", "parents": ["hidden"]},
                {"name": "out", "kind": "linear", "parents": ["relu"], "features": 10},
            ],
        },
    }
}

PLANNED_RATES: Examples = {
    "warm-up": {
        "summary": "A warm-up of 100 steps, a tenth from step 1000 on",
        "value": {"steps": [0, 100, 999, 1000], "rates": [0.001, 0.1, 0.1, 0.01]},
    }
}

RESULTS: Examples = {
    "succeeded": {
        "summary": "Converged",
        "value": {"outcome": "succeeded", "step": 2100, "final_loss": 0.04, "metrics": {"test_accuracy": 0.975}},
    },
    "failed": {
        "summary": "The job's own code raised",
        "value": {"outcome": "failed", "step": 12, "error": "ValueError: no images in /data"},
    },
}

QUOTAS: Examples = {
    "share": {"summary": "A quarter of everything", "value": {"share": 0.25}},
    "GPUs": {
        "summary": "Eight GPUs, and never more than its part",
        "value": {"gpus": {"a100": 8}, "memory_bytes": "512Gi", "may_borrow": False},
    },
}

SUBMITTED: dict[int | str, dict[str, Any]] = {
    200: {"description": "A repetition: the job that the first request made"},
    201: {
        "description": "The job was accepted",
        "headers": {"Location": {"description": "where the job is", "schema": {"type": "string"}}},
    },
}

BATCH_SUBMITTED: dict[int | str, dict[str, Any]] = {
    200: {"description": "No job is new: a repetition, or (not atomic) all were refused"},
    201: {"description": "Some jobs are new"},
}

USERS: Examples = {
    "member": {
        "summary": "Submits to one project, reads another",
        "value": {"projects": {"vision": "member", "nlp": "viewer"}},
    },
    "service": {"summary": "A program that reads metrics", "value": {"kind": "service", "role": "operator"}},
}

DEVICES: Examples = {
    "asked again": {
        "summary": "Until somebody has signed in",
        "value": {"device_code": "GmRhmhcxhwAzkoEqiMEg_DnyEysN"},
    },
}
TOKENS: Examples = {
    "of a user": {
        "summary": "For thirty days",
        "value": {"user": "ada", "name": "laptop", "scope": "submit", "expires_seconds": 2592000},
    },
    "of a pipeline": {"summary": "For one project", "value": {"user": "nightly", "projects": ["vision"]}},
}


# --- what other projects' clients send ------------------------------------------------------------------------------


def _body_of(schema: dict[str, Any], found: Examples, also: dict[str, Any] | None = None) -> dict[str, Any]:
    content = {"application/json": {"schema": schema, "examples": found}, **(also or {})}
    return {"requestBody": {"required": True, "content": content}}


_OBJECT = {"type": "object", "additionalProperties": True}
_STATUS_SCHEMA = {
    "type": "object",
    "properties": {
        "metrics": {
            "type": ["array", "null"],
            "maxItems": 1000,
            "items": {
                "type": "object",
                "required": ["name", "value"],
                "properties": {"name": {"type": "string"}, "value": {"type": ["number", "string"]}},
                "additionalProperties": True,
            },
        }
    },
    "additionalProperties": True,
}
STATUSES: Examples = {
    "status": {
        "summary": "As transformers' Trainer sends it when KUBEFLOW_TRAINER_SERVER_URL is set",
        "value": {
            "trainerStatus": {
                "lastUpdatedTime": "2026-11-25T10:00:00+00:00",
                "progressPercentage": 12,
                "estimatedRemainingSeconds": 840,
                "metrics": [
                    {"name": "loss", "value": "0.52"},
                    {"name": "current_step", "value": "120"},
                    {"name": "total_steps", "value": "1000"},
                ],
            }
        },
    }
}
TRACKED_BODY = _body_of(
    {
        "anyOf": [
            {"type": "object", "required": ["trainerStatus"], "properties": {"trainerStatus": _STATUS_SCHEMA}},
            {
                "type": "object",
                "required": ["resourceMetrics"],
                "properties": {"resourceMetrics": {"type": "array", "items": {}}},
            },
        ]
    },
    STATUSES,
    {"application/x-protobuf": {"schema": {"type": "string", "format": "binary"}}},
)
"""The OpenAPI entry of a call that takes a status of Kubeflow's progress protocol, or OTLP metrics."""
MLFLOW_CALLS: Examples = {
    "runs/create": {
        "summary": "runs/create",
        "value": {"experiment_id": "0", "run_name": "first", "start_time": 1760000000000},
    }
}
MLFLOW_BODY = _body_of(_OBJECT, MLFLOW_CALLS)
