"""All about one job (`optimus describe`). Pure: no console, no clock, no network."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from optimus_cli.bodies import AllocationPoint, Event, Job, JobProfile
from optimus_cli.show import wording
from optimus_cli.show.layout import FittingTable, columns_table, facts_table
from optimus_cli.show.render_jobs import (
    is_renamed,
    labels,
    left,
    priority,
    progress,
    starts_in,
    state_of,
    time_left,
)
from optimus_contract.command import UnknownOption, launch

SHOWN_EVENTS = 8
PRINTS_NOTHING = "(nothing so far)"
"""What the API has in place of a line of a script that is silent."""
NO_STEP = "no step was recognised in what it prints; use --progress-pattern"


def job_description(
    job: Job,
    allocations: Sequence[AllocationPoint],
    events: Sequence[Event],
    now: datetime,
    tasks: RenderableType | None = None,
) -> RenderableType:
    """Everything about one job; `events` newest first; `tasks` as they are to be shown."""
    parts: list[RenderableType] = [facts_table(_job_facts(job, now))]
    if allocations:
        parts += [Text("\nSizes", style="bold"), allocation_table(allocations)]
    if tasks is not None:
        parts += [Text("\nTasks", style="bold"), tasks]
    if events:
        parts += [Text("\nLatest events", style="bold"), event_table(events[:SHOWN_EVENTS], now)]
    return Group(*parts)


def _job_facts(job: Job, now: datetime) -> list[tuple[str, RenderableType]]:
    spec, profile = job["spec"], job["profile"]
    facts: list[tuple[str, RenderableType]] = [
        ("Job", job["id"]),
        *([("Name", job["name"])] if is_renamed(job) else []),
        ("State", state_of(job)),
        trains(spec),
        *_processes(spec),
        ("Project", job["project"]),
        *([("Labels", labels(job))] if spec.get("labels") else []),
        ("Priority", f"{priority(job):g}"),
        ("Converges when", convergence(spec.get("convergence") or {})),
        ("Submitted", wording.ago(job["created_at"], now)),
        ("Progress", f"{progress(job)}  step {wording.count(job['step'])}{epoch(job)}"),
        ("Loss", wording.number(job["loss"], wording.LOSS_DIGITS)),
        ("Speed", speed(job)),
        ("Steps left", wording.count_interval(job["remaining_steps"])),
        ("Time", time_left(job) if job["finished_at"] else left(job)),
        *starts_in(job),
        *([("Silence", Text(waits, style="yellow"))] if (waits := job.get("awaited")) else []),
        ("Size", size(job)),
        ("Rescales", str(job["rescales"])),
    ]
    if job.get("learning_rate") is not None:  # an older service tells none
        facts.append(("Learning rate", wording.number(job["learning_rate"])))
    if spec.get("elastic_batch"):
        facts.append(("Batch", elastic_batch(job)))
    if profile is not None and profile.get("n_parameters") is not None:
        facts.append(("Model", f"{wording.count(profile['n_parameters'])} parameters"))
        facts.append(("Data", f"{wording.count(profile['n_examples'])} examples, batch {profile['global_batch_size']}"))
    if profile is not None and profile.get("learned_from") is not None:
        facts.append(("Learned from", learned_from(profile, spec)))
    elif spec.get("command") and job["state"] == "running" and not job["step"]:
        line = None if profile is None else profile.get("unread_line")
        facts.append(("Learned from", f"nothing{_lacks(line)}"))
        if line is not None and line != PRINTS_NOTHING:
            facts.append(("It prints", line))
        if profile is not None and (pattern := profile.get("suggested_pattern")) is not None:
            facts.append(("Pattern for it", f"--progress-pattern '{pattern}'"))
    if job["reason"] is not None:
        facts.append(("Last decision", f"{job['reason']}: {job['message'] or ''}"))
    if job.get("last_error") is not None and job.get("retries"):
        facts.append(("Retries", retries(job, now)))
    elif job.get("last_error") is not None and job["failure"] is None:
        facts.append(("Last error", f"{job['last_error']}; its owner resumed it"))
    if job["failure"] is not None:
        facts.append(("Failure", Text(wording.failure(job["failure"]), style="red")))
    return facts + _result_facts(job)


def _lacks(line: str | None) -> str:
    """Why nothing was learned of a script that runs; `line`: one that it printed, None before the service was told."""
    if line is None:
        return " so far: no step was told"
    return ": it has printed nothing so far" if line == PRINTS_NOTHING else f": {NO_STEP}"


def speed(job: Job) -> str:
    """As it was measured last, and until when, if the next step is late. The time left, which may be told beside it,
    looks further back and ahead."""
    measured, silent = job["steps_per_second"], job.get("silent_seconds")  # an older service tells none
    until = "lately" if silent is None else f"until {wording.duration(silent)} ago"
    return wording.UNKNOWN if measured is None else f"{wording.number(measured)} steps/s {until}"


def size(job: Job) -> str:
    """What the job has, and what it should have."""
    running = wording.tasks(job["running"])
    if job["spec"].get("tracked"):
        return f"{running}, outside the cluster"
    return f"{running} running, {wording.tasks(job['wanted'])} wanted"


def trains(spec: Mapping[str, Any]) -> tuple[str, str]:
    """What the job trains: its task, or the command of a script; of a training elsewhere neither may be known."""
    if command := spec.get("command"):
        return "Command", shlex.join(command)
    if spec.get("tracked"):
        return "Trains", "outside the cluster, and tells its steps by itself"
    return "Task", f"{spec.get('task', wording.UNKNOWN)}  ({spec.get('mode', wording.UNKNOWN)})"


def _processes(spec: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    """How many processes each worker of a distributed script has; nothing for other jobs."""
    command, workers = spec.get("command"), spec.get("workers") or {}
    if not command or spec.get("tracked"):
        return []
    try:
        found = launch(command, gpus=(workers.get("resources") or {}).get("gpus", 0), workers=workers.get("max", 1))
    except UnknownOption:  # of another release's service
        return []
    return [("Processes", f"{found.n_processes} in each worker")] if found.is_distributed else []


def epoch(job: Job) -> str:
    """Passes over the data so far; nothing for a script, or a training elsewhere, that has not told them."""
    is_known = _has_task(job) or bool(job["epoch"])
    return f", epoch {wording.number(job['epoch'])}" if is_known else ""


_CHANNELS = {
    "client": "its calls of optimus_client",
    "kubeflow": "its progress reports (Kubeflow's protocol)",
    "mlflow": "its MLflow metrics",
    "otlp": "its OpenTelemetry metrics",
    "tensorboard": "its TensorBoard files",
    "printed": "what it prints",
}


def channel(name: str | None) -> str:
    """The way by which the steps of a script are known, in words."""
    return _CHANNELS.get(name or "", wording.UNKNOWN)


def learned_from(profile: JobProfile, spec: dict[str, Any]) -> str:
    """How the steps of a script are known, and whether its size can change, where its owner allows several sizes."""
    way, workers = channel(profile["learned_from"]), spec["workers"]
    if spec.get("tracked", False) or workers["min"] == workers.get("max"):
        return way
    if (fixed := profile.get("fixed_workers")) is not None:
        return f"{way}; it counts its steps by its number of processes, so its size stays (workers: {fixed})"
    return f"{way}; {_on_resuming(profile.get('resumes'), spec.get('resumes'))}"


def _on_resuming(seen: bool | None, said: bool | None) -> str:
    """Whether a script goes on from its checkpoint, and so may have another size: its owner's word goes first.

    `seen`: False of one that began anew; it may have had no checkpoint yet.
    """
    anew = "it began anew when it was started again"
    if said is False:
        return "it is said not to resume (resumes: false), so its size stays"
    if seen:
        return "it resumes from its checkpoint, so its size can change"
    if said:
        words = "it is said to resume (--resumes), so its size can change"
        return words if seen is None else f"{words}, but {anew}"
    return "its size stays until it is known to resume (--resumes)" if seen is None else f"{anew}, so its size stays"


def retries(job: Job, now: datetime) -> Text:
    """What became of errors of the job's code: the retry that it waits for, or how many it had."""
    used, most = job["retries"], job["spec"].get("retries")
    if job["retry_at"] is None:
        return Text(f"{used} of {wording.count(most)} used; last error: {job['last_error']}")
    seconds = (wording.moment(job["retry_at"]) - now).total_seconds()
    due = "when there is room" if seconds <= 0 else f"in {wording.duration(seconds)}"
    return Text(
        f"waits for retry {used} of {wording.count(max(used, most or 0))}, {due}: {job['last_error']}", style="yellow"
    )


def elastic_batch(job: Job) -> str:
    """The batch that the scheduler chose, its bounds, and what the choice rests on."""
    bounds, noise = job["spec"]["elastic_batch"], job.get("noise_scale")
    chosen = wording.count(job.get("global_batch") or bounds["minimum"])
    known = "not measured yet" if noise is None else f"{wording.count(noise)} examples"
    return f"{chosen} of {bounds['minimum']} to {bounds['maximum']} (elastic); noise scale {known}"


def final_loss(job: Job, value: float | None) -> str:
    """Of a script the last that it told; of a task the mean of its last steps, which is not what the last one said."""
    of = ", the mean of its last steps" if value is not None and _has_task(job) else ""
    return wording.number(value, wording.LOSS_DIGITS) + of


def _has_task(job: Job) -> bool:
    """Whether it is trained by our own loop, which counts epochs and means."""
    return not job["spec"].get("command") and not job["spec"].get("tracked")


def _result_facts(job: Job) -> list[tuple[str, RenderableType]]:
    result = job["result"]
    if result is None:
        return []
    metrics = ", ".join(f"{name} {wording.number(value, 4)}" for name, value in sorted(result["metrics"].items()))
    has_loss = result["final_loss"] is not None
    loss = [("Final loss", final_loss(job, result["final_loss"]))] if has_loss or _has_task(job) else []
    told = [("Metrics", metrics), ("Checkpoint", result["checkpoint"]), ("Model", result.get("model"))]
    return [*loss, *((name, text) for name, text in told if text)]


def convergence(rule: dict[str, Any]) -> str:
    """A convergence rule as a sentence."""
    conditions = []
    decrease = rule.get("loss_decrease")
    if decrease is not None:
        conditions.append(
            f"the loss falls by less than {100 * decrease['below']:g} % per epoch"
            f" ({decrease.get('patience_epochs', 3)} epochs in a row)"
        )
    if rule.get("target_loss") is not None:
        conditions.append(f"the loss reaches {rule['target_loss']:g}")
    metric = rule.get("target_metric")
    if metric is not None:
        rises = metric.get("at_least") is not None
        value = metric["at_least"] if rises else metric["at_most"]
        conditions.append(f"{metric['name']} {'rises' if rises else 'falls'} to {value:g}")
    if rule.get("max_cost") is not None:
        conditions.append(f"it has cost {rule['max_cost']:g}")
    conditions += [
        f"{wording.count(rule[name])} {unit} are done"
        for name, unit in (("max_epochs", "epochs"), ("max_steps", "steps"), ("max_seconds", "seconds"))
        if rule.get(name) is not None
    ]
    if rule.get("command_ends"):
        conditions.append("its command ends")
    return ", or ".join(conditions) or wording.UNKNOWN


def allocation_table(points: Sequence[AllocationPoint]) -> RenderableType:
    """The job's memberships, oldest first."""
    rows: list[dict[str, RenderableType]] = []
    for point in points:
        pause = point["pause_seconds"]
        cause = "tasks replaced" if point["cause"] == "replaced" else point["cause"].replace("_", " ")
        parts = point["pause_parts"]
        tells_some = parts is not None and bool(parts.get("told_every"))  # of its steps
        at_most = "at most " if tells_some and pause else ""
        still = wording.UNKNOWN if pause is None else f"{at_most}{wording.number(pause)} s{_parts(point)}"
        # After an error or a kill nobody knows until when it made steps that it did not tell.
        about = "at least " if point["workers"] and parts and parts.get("stop_seconds") is None else "about "
        lost = wording.lost(point["lost_steps"], point.get("lost_seconds"))
        rows.append(
            {
                "after": wording.duration(point["at_seconds"]),
                "size": f"{point['workers']}w+{point['servers']}p{_in_batches(point)}",
                "at step": wording.count(point["step"]),
                "cause": cause,
                "stood still": still,
                "lost": f"{about if tells_some and point['lost_steps'] else ''}{lost}" or wording.UNKNOWN,
            }
        )
    return FittingTable(rows, left_out=(), right=["at step"], folded=["stood still", "lost"])


def _parts(point: AllocationPoint) -> str:
    """What the pause of a script consists of."""
    parts = point["pause_parts"]
    if parts is None:
        return ""
    named = {
        "save": parts["save_seconds"],
        "stop": parts["stop_seconds"],
        "start": parts["start_seconds"],
        "load": parts["load_seconds"],
    }
    told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in named.items() if seconds is not None)
    return f" ({told})" if told else ""


def _in_batches(point: AllocationPoint) -> str:
    return f", batch {point['global_batch']}" if point.get("global_batch") else ""


def event_table(events: Sequence[Event], now: datetime) -> RenderableType:
    table = columns_table("when", "event", "message")
    for event in events:
        table.add_row(wording.ago(event["at"], now), event["type"], Text(event["message"]))
    return table
