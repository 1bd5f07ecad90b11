"""From answers of the API to what rich shows. Pure: no console, no clock, no network."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from optimus_cli.bodies import AllocationPoint, Decision, Event, Explanation, Forecast, Job, JobProfile, Node
from optimus_cli.show import wording
from optimus_cli.show.palette import STATE_STYLES
from optimus_client.answers import ENDED
from optimus_contract.command import UnknownOption, launch

SHOWN_EVENTS = 8
SHOWN_DECISIONS = 10
READ_DECISIONS = 100
"""Most rounds decide the same as the one before; those are one line."""
LONGEST_WHOLE_ID = 28
LONGEST_LABEL = 28
"""Characters of one label in a list; `optimus describe` shows all."""
LEFT_OUT = ("owner", "step", "submitted", "priority", "project", "labels", "loss")
"""Columns of a list that a terminal has no room for, the first of them first."""
COLUMN_GAP = 3
LEAST_WORDS = 12
"""Characters for columns of several words: enough to break between words, and not in a figure."""
LONGEST_NAME_IN_ID = 34
"""Characters of a name that an id begins with."""
FOLDED = frozenset({"time left", "submitted", "cause", "message"})
"""Columns of several words. All others are kept on one line: half a number is no number."""
LEAST_WIDTHS = dict.fromkeys((*FOLDED, "stood still", "lost"), LEAST_WORDS) | {"why": 20, "to what": 24, "projects": 8}


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, style=STATE_STYLES.get(name, ""))


def is_being_cancelled(job: Job) -> bool:
    """Whether its owner cancelled it, and its tasks are still being stopped."""
    return job["directive"] == "cancel" and job["finished_at"] is None


BEING_CANCELLED = "being cancelled"

BEFORE_TASKS = ("queued", "paused")
"""States of a job without tasks: one that has been given some is starting."""


def state_of(job: Job) -> Text:
    """A job's state, as the page says it: one that waits and whose tasks are on their way is starting."""
    starts = job["state"] in BEFORE_TASKS and bool(job["wanted"]["workers"]) and not is_being_cancelled(job)
    return Text("starting" if starts else job["state"], style=STATE_STYLES.get(job["state"], ""))


def columns_table(
    *columns: str, right: Iterable[str] = (), folded: Iterable[str] = (), widths: Mapping[str, int] | None = None
) -> Table:
    """`folded` columns may break into lines beside those that always may; what is too wide in others is cut with a "…".

    `widths`: that there is room for (`fitting`): columns of several words have these.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    aligned, broken = set(right), FOLDED.union(folded)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in aligned else "left"
        least = LEAST_WIDTHS.get(column)
        wide = None if widths is None or least is None else widths[column]
        is_whole = column not in broken
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if is_whole else "fold"
        table.add_column(column, justify=justify, overflow=overflow, no_wrap=is_whole, min_width=least, width=wide)
    return table


def facts_table(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """A two-column list of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def job_list(jobs: Sequence[Job], now: datetime) -> RenderableType:
    """One line per job."""
    if not jobs:
        return Text("No jobs. Submit one with `optimus submit`.", style="dim")
    return _JobList(jobs, now)


@dataclass(frozen=True, slots=True)
class _JobList:
    """A table with fewer columns where the terminal is narrow: a figure broken into lines is no figure."""

    jobs: Sequence[Job]
    now: datetime

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [dict(self._cells(job)) for job in self.jobs]
        widths = fitting(rows, LEFT_OUT, options.max_width)
        # An id is there to be copied: it is broken only where it would push the figures out of a small terminal.
        breaks_ids = _in_all(widths) > options.max_width and widths["id"] > LONGEST_WHOLE_ID
        table = columns_table(
            *widths, right=["progress", "step", "loss"], folded=["id"] if breaks_ids else [], widths=widths
        )
        for row in rows:
            table.add_row(*(row[name] for name in widths))
        yield table

    def _cells(self, job: Job) -> list[tuple[str, RenderableType]]:
        return [
            ("id", Text(job["id"])),
            *([("name", Text(job["name"]))] if any(_is_renamed(each) for each in self.jobs) else []),
            ("state", state_of(job)),
            ("progress", progress(job)),
            ("step", wording.count(job["step"])),
            ("loss", wording.number(job["loss"], wording.LOSS_DIGITS)),
            ("time left", time_left(job)),
            ("size", wording.tasks(job["running"])),
            ("submitted", wording.ago(job["created_at"], self.now)),
            *([("project", Text(job["project"]))] if self._differ(lambda each: each["project"]) else []),
            *([("owner", Text(_owner(job)))] if self._differ(_owner) else []),
            *([("priority", f"{_priority(job):g}")] if self._differ(_priority) else []),
            *([("labels", _label_lines(job))] if any(each["spec"].get("labels") for each in self.jobs) else []),
        ]

    def _differ(self, what: Callable[[Job], object]) -> bool:
        """Whether it is not the same for all jobs of the list: else it is no help in telling them apart."""
        return len({what(job) for job in self.jobs}) > 1


def _owner(job: Job) -> str:
    """Whose it is; a dash where nobody knows."""
    return job.get("owner") or wording.UNKNOWN


def fitting(rows: Sequence[Mapping[str, RenderableType]], left_out: Sequence[str], width: int) -> dict[str, int]:
    """The columns that a terminal of `width` characters has room for, with their widths; those of `left_out` go first,
    in its order."""
    whole = {name: max(_width(name), *(_width(row[name]) for row in rows)) for name in rows[0]}
    widths = whole | {name: min(whole[name], least) for name, least in LEAST_WIDTHS.items() if name in whole}
    going = [name for name in left_out if name in widths]
    while going and _in_all(widths) > width:
        del widths[going.pop(0)]
    for name in widths:
        widths[name] = min(whole[name], widths[name] + max(width - _in_all(widths), 0))
    return widths


@dataclass(frozen=True, slots=True)
class FittingTable:
    """A table with fewer columns where the terminal is narrow; `left_out`, `right`, `folded`: as of `fitting` and
    `columns_table`."""

    rows: Sequence[Mapping[str, RenderableType]]
    left_out: Sequence[str]
    right: Sequence[str] = ()
    folded: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = fitting(self.rows, self.left_out, options.max_width)
        table = columns_table(*widths, right=self.right, folded=self.folded, widths=widths)
        for row in self.rows:
            table.add_row(*(row[name] for name in widths))
        yield table


def _width(cell: RenderableType) -> int:
    """Characters of its longest line."""
    lines = (cell.plain if isinstance(cell, Text) else str(cell)).splitlines()
    return max((cell_len(line) for line in lines), default=0)


def _in_all(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + COLUMN_GAP * (len(widths) - 1) + 2


def _label_lines(job: Job) -> Text:
    """A label on each line."""
    lines = labels(job).split(", ") if job["spec"].get("labels") else []
    return Text("\n".join(line if len(line) <= LONGEST_LABEL else f"{line[: LONGEST_LABEL - 1]}…" for line in lines))


def _is_renamed(job: Job) -> bool:
    """Whether its id, which begins with the name that it was submitted with, does not tell its name any more."""
    return not f"{job['id']}-".startswith(f"{job['name'][:LONGEST_NAME_IN_ID].rstrip('-')}-")


def _priority(job: Job) -> float:
    return float(job["spec"].get("priority") or 1.0)


def labels(job: Job) -> str:
    """`team=vision, try`."""
    given = (job["spec"].get("labels") or {}).items()
    return ", ".join(f"{name}={value}" if value else name for name, value in given)


def progress(job: Job) -> str:
    return "100 %" if job["state"] == "succeeded" else wording.percent(job["progress"])


PRINTS_NOTHING = "(nothing so far)"
"""What the API has in place of a line of a script that is silent."""
NO_STEP = "no step was recognised in what it prints; use --progress-pattern"
LONGER = "longer than predicted"
"""Of a job that went on beyond its likeliest end: what is left then is what such jobs still take."""


def time_left(job: Job) -> str:
    """Predicted time to convergence; for a job that has ended, what it took."""
    if job["finished_at"] is not None:
        return f"took {wording.duration(job['jct_seconds'])}"
    if is_being_cancelled(job):
        return BEING_CANCELLED
    if starts := starts_in(job):
        return f"starts in {starts[0][1]}"
    time, still = wording.duration_interval(job["remaining_seconds"]), job.get("standstill")
    if still is None:
        return time
    return still if time == wording.UNKNOWN else f"{time}; {still}"


def left(job: Job) -> str:
    """The time left in words: `24 s (18–33) left, longer than predicted`."""
    if is_being_cancelled(job):
        return BEING_CANCELLED
    if job.get("finishing"):
        return "finishing"
    time = wording.duration_interval(job["remaining_seconds"])
    is_longer = job.get("longer_than_predicted")
    if still := job.get("standstill"):
        return still if time == wording.UNKNOWN else f"{time} left; {still}"
    if time == wording.UNKNOWN:
        return LONGER if is_longer else "not known yet how much is left"
    return f"{time} left" + (f", {LONGER}" if is_longer else "")


def starts_in(job: Job) -> list[tuple[str, str]]:
    """When a waiting job gets tasks, by the queue simulated forward; nothing of others."""
    expected = job.get("expected")
    start = None if expected is None else expected["start_seconds"]
    return [] if start is None or job["finished_at"] else [("Starts in", wording.wait(start))]


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
        *([("Name", job["name"])] if _is_renamed(job) else []),
        ("State", state_of(job)),
        trains(spec),
        *_processes(spec),
        ("Project", job["project"]),
        *([("Labels", labels(job))] if spec.get("labels") else []),
        ("Priority", f"{_priority(job):g}"),
        ("Converges when", convergence(spec.get("convergence") or {})),
        ("Submitted", wording.ago(job["created_at"], now)),
        ("Progress", f"{progress(job)}  step {wording.count(job['step'])}{epoch(job)}"),
        ("Loss", wording.number(job["loss"], wording.LOSS_DIGITS)),
        ("Speed", f"{wording.number(job['steps_per_second'])} steps/s"),
        ("Steps left", wording.count_interval(job["remaining_steps"])),
        ("Time", time_left(job) if job["finished_at"] else left(job)),
        *starts_in(job),
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
        lacks = "it has printed nothing so far" if line == PRINTS_NOTHING else NO_STEP
        facts.append(("Learned from", f"nothing: {lacks}"))
        if line is not None and line != PRINTS_NOTHING:
            facts.append(("It prints", line))
        if profile is not None and (pattern := profile.get("suggested_pattern")) is not None:
            facts.append(("Pattern for it", f"--progress-pattern '{pattern}'"))
    if job["reason"] is not None:
        facts.append(("Last decision", f"{job['reason']}: {job['message'] or ''}"))
    if job.get("last_error") is not None:
        facts.append(("Retries", retries(job, now)))
    if job["failure"] is not None:
        facts.append(("Failure", Text(wording.failure(job["failure"]), style="red")))
    return facts + _result_facts(job)


def size(job: Job) -> str:
    """What the job has, and what it should have."""
    running = wording.tasks(job["running"])
    if job["spec"].get("tracked"):
        return f"{running}, outside the cluster"
    return f"{running} running, {wording.tasks(job['wanted'])} wanted"


def trains(spec: Mapping[str, Any]) -> tuple[str, str]:
    """What the job trains: its task, or the command of a script."""
    command = spec.get("command")
    if command:
        return "Command", shlex.join(command)
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
    """Passes over the data so far; nothing for a script that has not told them."""
    is_known = not job["spec"].get("command") or bool(job["epoch"])
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
    resumes = profile.get("resumes")
    size = {
        True: "it resumes from its checkpoint, so its size can change",
        False: "it does not resume, so its size stays",
        None: "it is said to resume (--resumes), so its size can change"
        if spec.get("resumes")
        else "its size stays until it is known to resume (--resumes)",
    }[resumes]
    return f"{way}; {size}"


def retries(job: Job, now: datetime) -> Text:
    """What became of errors of the job's code: the retry that it waits for, or how many it had."""
    used, most = job["retries"], job["spec"].get("retries")
    if job["retry_at"] is None:
        return Text(f"{used} of {wording.count(most)} used; last error: {job['last_error']}")
    seconds = (wording.moment(job["retry_at"]) - now).total_seconds()
    due = "when there is room" if seconds <= 0 else f"in {wording.duration(seconds)}"
    return Text(f"waits for retry {used} of {wording.count(most)}, {due}: {job['last_error']}", style="yellow")


def elastic_batch(job: Job) -> str:
    """The batch that the scheduler chose, its bounds, and what the choice rests on."""
    bounds, noise = job["spec"]["elastic_batch"], job.get("noise_scale")
    chosen = wording.count(job.get("global_batch") or bounds["minimum"])
    known = "not measured yet" if noise is None else f"{wording.count(noise)} examples"
    return f"{chosen} of {bounds['minimum']} to {bounds['maximum']} (elastic); noise scale {known}"


def _result_facts(job: Job) -> list[tuple[str, RenderableType]]:
    result = job["result"]
    if result is None:
        return []
    metrics = ", ".join(f"{name} {wording.number(value, 4)}" for name, value in sorted(result["metrics"].items()))
    facts: list[tuple[str, RenderableType]] = [
        ("Final loss", wording.number(result["final_loss"], wording.LOSS_DIGITS)),
        ("Metrics", metrics or wording.UNKNOWN),
    ]
    paths = [("Checkpoint", result["checkpoint"]), ("Model", result.get("model"))]
    return facts + [(name, path) for name, path in paths if path]


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
        still = wording.UNKNOWN if pause is None else f"{wording.number(pause)} s{_parts(point)}"
        rows.append(
            {
                "after": wording.duration(point["at_seconds"]),
                "size": f"{point['workers']}w+{point['servers']}p{_in_batches(point)}",
                "at step": wording.count(point["step"]),
                "cause": cause,
                "stood still": still,
                "lost": wording.lost(point["lost_steps"], point.get("lost_seconds")) or wording.UNKNOWN,
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


def explanation(
    why: Explanation, decisions: Sequence[Decision], now: datetime, *, with_fit: bool = False
) -> RenderableType:
    """Why the job has the size it has, what was believed when that was decided, and the decisions so far.

    `with_fit`: with the coefficients of the fitted models.
    """
    has_ended = why["state"] in ENDED
    is_starting = why["state"] in BEFORE_TASKS and why["allocation"]["workers"]
    decided = f"{why['reason']}, {wording.ago(why['at'], now)}" if why["reason"] else ""
    facts: list[tuple[str, RenderableType]] = [
        ("Job", why["job_id"]),
        ("State", Text("starting", style=STATE_STYLES["queued"]) if is_starting else state(why["state"])),
        *([("Decided", decided)] if decided and not has_ended else []),
        ("Because", "\n".join(why["sentences"] or [why["message"]])),
        ("Again" if has_ended else "To get more", why["what_would_change_it"].removeprefix("Nothing: it has ended. ")),
    ]
    latest = Group(Text("\nLatest decisions", style="bold"), decision_table(decisions, now)) if decisions else Text()
    if has_ended or why["reason"] == "Cancelling":  # nothing is gained or expected any more
        return Group(facts_table(facts), latest)
    believed = [
        ("Size", f"{wording.tasks(why['previous'])} → {wording.tasks(why['allocation'])}"),
        ("Gain of its last task", wording.number(why["gain"])),
        ("Gain of one more", wording.number(why["next_gain"])),
        ("Starts in", wording.wait(why["expected"]["start_seconds"])),
        ("Ends in", wording.duration_interval(why["expected"]["finish_seconds"])),
    ]
    if decisions:
        believed += _forecast_facts(decisions[0]["forecast"], with_fit=with_fit)
    facts += [(name, value) for name, value in believed if value != wording.UNKNOWN]
    return Group(facts_table(facts), latest)


def _forecast_facts(forecast: Forecast, *, with_fit: bool) -> list[tuple[str, str]]:
    """What the round believed; a forecast may lack anything. What is left by now is in `Ends in`."""
    speed = wording.number(forecast.get("steps_per_second"))
    whence = ", calculated from its layers: none is measured yet" if forecast.get("speed_from") == "analysis" else ""
    total = forecast.get("total_steps") if forecast.get("rule") else None  # without one it is a guess
    fit = [
        ("Loss curve", coefficients(forecast.get("loss_curve") or {})),
        ("Speed model", coefficients(forecast.get("speed_model") or {})),
    ]
    return [
        ("Steps in total", wording.count_interval(total)),
        ("Predicted speed", speed if speed == wording.UNKNOWN else f"{speed} steps/s{whence}"),
        ("Ends by", wording.ends_by(forecast.get("rule"))),
        *(fit if with_fit else []),
    ]


def coefficients(values: dict[str, float | None]) -> str:
    return ", ".join(f"{name} = {wording.number(value, 4)}" for name, value in values.items()) or wording.UNKNOWN


def alike(decisions: Sequence[Decision]) -> list[tuple[Decision, Decision]]:
    """The newest and the oldest of each row of rounds that decided the same: most rounds do."""
    found: list[tuple[Decision, Decision]] = []
    what = ("previous", "allocation", "reason", "message")
    for decision in decisions:
        if found and all(found[-1][1][name] == decision[name] for name in what):  # type: ignore[literal-required]
            found[-1] = found[-1][0], decision
        else:
            found.append((decision, decision))
    return found


def decision_table(decisions: Sequence[Decision], now: datetime) -> RenderableType:
    table = columns_table("when", "size", "reason", "message", folded=["when", "size"])
    for decision, oldest in alike(decisions)[:SHOWN_DECISIONS]:
        since = wording.duration((now - wording.moment(oldest["at"])).total_seconds())
        when = wording.ago(decision["at"], now)
        table.add_row(
            when if decision is oldest else f"{since} – {when}",
            f"{wording.tasks(decision['previous'])} → {wording.tasks(decision['allocation'])}",
            decision["reason"],
            Text(decision["message"]),
        )
    return table


def _closed(node: Node) -> str:
    """Why nothing new goes there."""
    if not node.get("drained"):
        return "not schedulable"
    return "drained" if not node["tasks"] else "is being drained"


def node_list(nodes: Sequence[Node]) -> RenderableType:
    if not nodes:
        return Text("The cluster has no nodes.", style="dim")
    table = columns_table("node", "CPU used", "memory used", "GPUs", "tasks", "", right=["CPU used", "tasks"])
    for node in nodes:
        used, capacity = node["used"], node["capacity"]
        table.add_row(
            Text(node["name"]),
            wording.used_of(used, capacity),
            f"{wording.size(used['memory_bytes'])} of {wording.size(capacity['memory_bytes'])}",
            wording.gpus(capacity["gpus"]),
            str(len(node["tasks"])),
            "" if node["schedulable"] else Text(_closed(node), style="yellow"),
        )
    return table
