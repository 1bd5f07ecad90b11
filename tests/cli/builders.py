"""Bodies as the API answers them, with everything but what a test is about filled in."""

from __future__ import annotations

from typing import Any, cast

from optimus_cli.bodies import (
    AllocationPoint,
    Cluster,
    Decision,
    Explanation,
    Interval,
    Job,
    Node,
    Plan,
    Predictions,
    QueuedJob,
    Task,
    Usage,
)

CREATED = "2026-01-02T03:04:05Z"


def interval(mean: float, low: float | None = None, high: float | None = None) -> Interval:
    return {"mean": mean, "low": low, "high": high}


def job(**changes: Any) -> Job:
    """A job, by default of the name that its id begins with."""
    if "id" in changes:
        changes = {"name": changes["id"].rpartition("-")[0] or "digits-mlp"} | changes
    body: dict[str, Any] = {
        "id": "digits-mlp-x7k2p",
        "name": "digits-mlp",
        "project": "default",
        "owner": "ada",
        "state": "running",
        "directive": "run",
        "spec": {
            "name": "digits-mlp",
            "task": "optimus_workers.zoo.digits:mlp",
            "mode": "sync",
            "convergence": {"loss_decrease": {"below": 0.01, "patience_epochs": 3}, "max_epochs": 100},
        },
        "created_at": CREATED,
        "started_at": CREATED,
        "finished_at": None,
        "jct_seconds": None,
        "first_step": 0,
        "step": 812,
        "epoch": 6.5,
        "loss": 0.3141,
        "steps_per_second": 14.2,
        "wanted": {"workers": 3, "servers": 2, "gpu_type": None},
        "running": {"workers": 2, "servers": 1, "gpu_type": None},
        "membership_epoch": 3,
        "progress": 0.62,
        "remaining_steps": interval(498.0, 400.0, 700.0),
        "remaining_seconds": interval(24.0, 18.0, 33.0),
        "reason": "GrantedMore",
        "message": "2 workers and 1 server save the most time",
        "profile": {"n_parameters": 5000, "n_examples": 1500, "global_batch_size": 64, "steps_per_epoch": 23.4},
        "result": None,
        "failure": None,
        "rescales": 2,
        "begins_anew": False,
        "lost_by_a_stop": None,
        "limit_reached": None,
    }
    return cast("Job", {**body, **changes})


def unknown_job(**changes: Any) -> Job:
    """A job of which nothing is known yet."""
    names = ("started_at", "first_step", "epoch", "loss", "steps_per_second", "progress", "remaining_steps")
    nothing = dict.fromkeys((*names, "remaining_seconds", "reason", "message", "profile"))
    empty = {"workers": 0, "servers": 0, "gpu_type": None}
    fresh: dict[str, Any] = {**nothing, "state": "queued", "step": 0, "wanted": empty, "running": empty}
    return job(**{**fresh, **changes})


def finished_job(**changes: Any) -> Job:
    result = {
        "outcome": "succeeded",
        "step": 1300,
        "final_loss": 0.12,
        "metrics": {"test_accuracy": 0.97},
        "checkpoint": None,
        "error": None,
    }
    done: dict[str, Any] = {
        "state": "succeeded",
        "finished_at": "2026-01-02T03:05:35Z",
        "jct_seconds": 90.0,
        "step": 1300,
        "progress": 1.0,
        "remaining_steps": None,
        "remaining_seconds": None,
        "result": result,
    }
    return job(**{**done, **changes})


def task(role: str, **changes: Any) -> Task:
    usage = {
        "at": CREATED,
        "cpu_cores": 1.5,
        "memory_bytes": 3 * 2**29,
        "gpu_utilization": None,
        "gpu_memory_bytes": None,
    }
    body = {"name": f"digits-{role}-0-0", "role": role, "rank": 0, "node": "node-1", "gpu_type": None}
    return cast("Task", {**body, "started_at": CREATED, "usage": usage, **changes})


def allocation(at_seconds: float, workers: int, servers: int, **changes: Any) -> AllocationPoint:
    body: dict[str, Any] = {
        "at": CREATED,
        "at_seconds": at_seconds,
        "membership_epoch": 1,
        "step": int(10 * at_seconds),
        "workers": workers,
        "servers": servers,
        "gpu_type": None,
        "cause": "rescale",
        "pause_seconds": 0.2,
        "pause_parts": None,
        "lost_steps": 0,
    }
    return cast("AllocationPoint", {**body, **changes})


def choice(**changes: Any) -> dict[str, Any]:
    body = {
        "workers": 2,
        "servers": 1,
        "remaining_seconds": interval(150.0, 100.0, 200.0),
        "cost": interval(0.3, 0.2, 0.4),
        "keeps_limit": True,
    }
    return {**body, **changes}


def predictions(**changes: Any) -> Predictions:
    speeds = [
        {
            "workers": workers,
            "servers": servers,
            "steps_per_second": 5.0 * workers,
            "remaining_seconds": interval(300.0 / workers, 200.0 / workers, 500.0 / workers),
            "measured": 5.1 if (workers, servers) == (1, 1) else None,
            "cost": None,
        }
        for workers in (1, 2, 3)
        for servers in (1, 2)
    ]
    history = [
        {"at": CREATED, "step": step, "total_steps": total}
        for step, total in ((100, None), (300, interval(1000.0, 600.0, None)), (900, interval(1250.0, 1200.0, 1310.0)))
    ]
    body: dict[str, Any] = {
        "at": CREATED,
        "total_steps": interval(1310.0, 1200.0, 1600.0),
        "remaining_steps": interval(498.0, 400.0, 700.0),
        "remaining_seconds": interval(24.0, 18.0, 33.0),
        "confidence": 0.8,
        "rule": "loss_decrease",
        "loss_curve": {"beta0": 0.01, "beta1": 0.4, "beta2": None},
        "speed_model": {"theta0": 0.1},
        "speeds": speeds,
        "losses": [{"step": step, "loss": 2.0 / (1 + step / 50)} for step in range(1, 800, 10)],
        "fitted": [{"step": step, "loss": 2.0 / (1 + step / 51)} for step in range(1, 1300, 10)],
        "history": history,
        "learned": {"finished_runs": 0, "share": 0.0, "speeds_from": "measured"},
        "learning_rates": [],
        "planned_rates": [],
        "metric": None,
        "cost": None,
        "checkpoints": None,
        "outcome": None,
    }
    return cast("Predictions", {**body, **changes})


def decision(**changes: Any) -> Decision:
    body: dict[str, Any] = {
        "round_id": 7,
        "at": CREATED,
        "allocation": {"workers": 3, "servers": 2, "gpu_type": None},
        "previous": {"workers": 2, "servers": 1, "gpu_type": None},
        "reason": "GrantedMore",
        "message": "3 workers and 2 servers save the most time",
        "gain": 120.5,
        "next_gain": None,
        "forecast": {"confidence": 0.7, "total_steps": interval(1310.0, 1200.0, 1600.0), "loss_curve": {"beta0": 0.01}},
    }
    return cast("Decision", {**body, **changes})


def explanation(**changes: Any) -> Explanation:
    body: dict[str, Any] = {
        "job_id": "digits-mlp-x7k2p",
        "state": "running",
        "at": CREATED,
        "reason": "GrantedMore",
        "message": "3 workers and 2 servers save the most time",
        "what_would_change_it": "nothing: it grows already",
        "sentences": [],
        "allocation": {"workers": 3, "servers": 2, "gpu_type": None},
        "previous": {"workers": 2, "servers": 1, "gpu_type": None},
        "gain": 120.5,
        "next_gain": None,
        "marginal": None,
        "confidence": 0.7,
        "expected": {"start_seconds": None, "finish_seconds": None, "finish_at": None},
        "last_rescale": None,
        "troubles": [],
    }
    return cast("Explanation", {**body, **changes})


def plan(**changes: Any) -> Plan:
    body: dict[str, Any] = {
        "allocation": {"workers": 1, "servers": 1, "gpu_type": None},
        "reason": "LearningSpeed",
        "message": "Starts with 1 worker and 1 server.",
        "what_would_change_it": "a few measurements",
        "sentences": ["Starts with 1 worker and 1 server.", "other-1 would have less."],
        "expected": {
            "start_seconds": {"mean": 0.0, "low": 0.0, "high": 0.0},
            "finish_seconds": {"mean": 300.0, "low": 240.0, "high": 480.0},
            "finish_at": CREATED,
        },
        "cost": {"mean": 1.25, "low": 1.0, "high": 2.0},
        "speed_from": "similar jobs",
        "finished_runs": 3,
        "confidence": 0.5,
        "effects": [
            {
                "job_id": "other-1",
                "name": "other",
                "before": {"workers": 3, "servers": 2, "gpu_type": None},
                "after": {"workers": 2, "servers": 2, "gpu_type": None},
                "finish_seconds_before": {"mean": 60.0, "low": None, "high": None},
                "finish_seconds_after": None,
            }
        ],
    }
    return cast("Plan", {**body, **changes})


def node(**changes: Any) -> Node:
    body: dict[str, Any] = {
        "name": "local-0",
        "schedulable": True,
        "capacity": {"cpu": 8.0, "memory_bytes": 8 * 2**30, "gpus": {}},
        "used": {"cpu": 6.0, "memory_bytes": 3 * 2**30, "gpus": {}},
        "tasks": ["digits-mlp-x7k2p-worker-0-0"],
    }
    return cast("Node", {**body, **changes})


def cluster(**changes: Any) -> Cluster:
    body: dict[str, Any] = {
        "capacity": {"cpu": 8.0, "memory_bytes": 8 * 2**30, "gpus": {}},
        "used": {"cpu": 6.0, "memory_bytes": 3 * 2**30, "gpus": {}},
        "jobs": {"running": 1},
        "unknown_tasks": [],
        "last_round_at": CREATED,
        "policy": "optimus",
        "version": "0.1.0",
    }
    return cast("Cluster", {**body, **changes})


def usage(**changes: Any) -> Usage:
    amounts = {"worker_hours": 20.0, "core_hours": 40.0, "gpu_hours": 20.0, "cost": 81.25}
    lines = [{"project": "vision", "owner": "ada", "gpu_type": "v100", **amounts}]
    body: dict[str, Any] = {"month": "2026-11", "until": CREATED, "total": amounts, "lines": lines}
    return cast("Usage", {**body, **changes})


def queued_job(**changes: Any) -> QueuedJob:
    body: dict[str, Any] = {
        "position": 2,
        "id": "digits-mlp-x7k2p",
        "name": "digits-mlp",
        "project": "vision",
        "owner": "ada",
        "priority": 1.0,
        "submitted_at": CREATED,
        "reason": "WaitingForResources",
        "why": "not even its minimum fits beside jobs that train or go first",
        "expected": None,
    }
    return cast("QueuedJob", {**body, **changes})
