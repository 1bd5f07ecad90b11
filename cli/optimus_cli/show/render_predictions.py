"""`optimus predict`: what is believed of a job, and of one that has ended what was predicted and what came. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from optimus_cli.bodies import (
    ChangePlan,
    Choice,
    Effect,
    Interval,
    Job,
    Outcome,
    Plan,
    Predictions,
    ReviewPoint,
    SpeedPoint,
)
from optimus_cli.show import wording
from optimus_cli.show.layout import columns_table, facts_table
from optimus_cli.show.render_job import final_loss
from optimus_cli.show.render_jobs import BEFORE_TASKS

MOST_CHOICES = 6
Facts = list[tuple[str, RenderableType]]


class Asked(NamedTuple):
    """Which choices of a size were asked for, so that each gets an answer."""

    in_time: bool = False
    in_budget: bool = False


NOTHING_ASKED = Asked()


def prediction(job: Job, predictions: Predictions, asked: Asked = NOTHING_ASKED) -> RenderableType:
    """How long the job would take with other sizes, and what it would cost."""
    outcome = predictions["outcome"]
    shown = _active(job, predictions, asked) if outcome is None else _ended(job, predictions, outcome, asked)
    return Group(*shown, *_advice(predictions))


def _advice(predictions: Predictions) -> Iterator[RenderableType]:
    """Sizes and checkpoints worth a thought."""
    found = [advice["message"] for advice in predictions.get("advice") or []]  # an older service gives none
    checkpoints = predictions.get("checkpoints")
    if checkpoints is not None:
        found.append(checkpoints["message"])
    if found:
        yield Text("\nWorth a thought", style="bold")
        yield from (Text(f"  {message}") for message in found)


def _active(job: Job, predictions: Predictions, asked: Asked) -> Iterator[RenderableType]:
    facts: Facts = [
        ("Job", job["id"]),
        ("Steps in total", wording.count_interval(predictions["total_steps"])),
        ("Steps left", wording.count_interval(predictions["remaining_steps"])),
        ("Time left", wording.duration_interval(predictions["remaining_seconds"])),
        ("Ends by", wording.ends_by(predictions["rule"], predictions["total_steps"])),
        ("Judged by", _sources(job, predictions)),
    ]
    rates = learning_rates(predictions)
    if rates is not None:
        facts.append(("Learning rate", rates))
    metric = predictions["metric"]
    if metric is not None:
        latest = f"{wording.number(metric['values'][-1]['value'], 4)}" if metric["values"] else "not evaluated yet"
        facts.append((metric["name"], f"{latest}, target {metric['target']:g}"))
    yield facts_table(facts + _cost_facts(predictions) + _choice_facts(predictions, asked))
    yield from _sizes(job, predictions)


_BY_CURVE = ("loss_decrease", "target_loss", "target_metric")
"""Fields of a convergence rule about what a job has learned."""


def _sources(job: Job, predictions: Predictions) -> str:
    """What the predictions rest on, in words."""
    learned, rule = predictions["learned"], job["spec"].get("convergence") or {}
    goes_by_losses = any(rule.get(name) is not None for name in _BY_CURVE)
    words = ["its own losses"] if predictions["losses"] and goes_by_losses else []
    if learned["finished_runs"]:
        count = learned["finished_runs"]
        runs = f"{count} earlier run{'s' * (count != 1)} ({wording.percent(learned['share'])} of the weight)"
        words.append(runs)
    speeds = {
        "measured": "measured speeds",
        "similar jobs": "speeds of earlier jobs",
        "analysis": "speeds calculated from its layers",
    }
    if learned["speeds_from"] is not None:
        words.append(speeds[learned["speeds_from"]])
    return ", ".join(words) or wording.UNKNOWN


def learning_rates(predictions: Predictions) -> str | None:
    """The newest rate, and where the plan ends; None where neither is known."""
    rates, plan = predictions.get("learning_rates"), predictions.get("planned_rates")  # an older service gives none
    present = wording.number(rates[-1]["rate"]) if rates else wording.UNKNOWN
    if not plan:
        return present if rates else None
    return f"{present}, planned {wording.number(plan[-1]['rate'])} at step {wording.count(plan[-1]['step'])}"


def _cost_facts(predictions: Predictions) -> Facts:
    cost = predictions["cost"]
    if cost is None:
        return []
    return [
        ("Cost so far", money(cost["so_far"])),
        ("Cost to finish", money_interval(cost["to_finish"])),
    ]


NO_PRICES = "unknown: the service has no prices (OPTIMUS_PRICE_PER_GPU_HOUR, OPTIMUS_PRICE_PER_CORE_HOUR)"
NO_CHOICE = "unknown: too little is known of its start, its speed or its end"
HAS_ENDED = "none: the job has ended"


def _choice_facts(predictions: Predictions, asked: Asked) -> Facts:
    """The size that each question gets, or why it gets none."""
    cost, ended = predictions["cost"], predictions["outcome"] is not None
    facts: Facts = []
    for name, is_asked, choice in (
        ("Cheapest in time", asked.in_time, cost and cost["cheapest_before_deadline"]),
        ("Fastest in budget", asked.in_budget, cost and cost["fastest_under_budget"]),
    ):
        if ended and is_asked:
            facts.append((name, HAS_ENDED))
        elif choice and not ended:
            facts.append((name, choice_words(choice)))
        elif is_asked:
            facts.append((name, NO_PRICES if cost is None else NO_CHOICE))
    return facts


def choice_words(choice: Choice) -> str:
    """A size with what it takes, and whether it keeps what was asked for."""
    size = f"{choice['workers']}w+{choice['servers']}p"
    takes = f"{wording.duration_interval(choice['remaining_seconds'])}, {money_interval(choice['cost'])}"
    return f"{size}: {takes}" if choice["keeps_limit"] else f"none; {size} comes nearest: {takes}"


def _sizes(job: Job, predictions: Predictions) -> Iterator[RenderableType]:
    speeds, cost = predictions["speeds"], predictions["cost"]
    if not any(point["steps_per_second"] is not None for point in speeds):
        yield Text("\nIts speed is not known well enough yet to predict other sizes.", style="yellow")
        return
    yield Text()
    if still := job.get("standstill"):
        yield Text(
            f"{still[0].upper()}{still[1:]}. All times and costs here count as if it trained on.", style="yellow"
        )
    yield speed_table(speeds, job)
    money_too = " and the cost to finish" if cost is not None else ""
    since = " from its start on" if job["state"] in BEFORE_TASKS else ""
    cell = f"Each cell: time left at that size{since}, with stops, evaluations and checkpoints as often as until now"
    yield Text(f"{cell}; below, its steps per second while it trains{money_too}; *: {_present(job)}.", style="dim")
    if _is_told_otherwise(job, predictions):
        yield Text(
            "The time left above counts waiting, later changes of size and jobs that may still be submitted, too.",
            style="dim",
        )
    beyond = list(dict.fromkeys(what for point in speeds if (what := point.get("beyond")) is not None))
    if beyond:
        yield Text(f"(no): beyond {', '.join(beyond)}. What other jobs hold is not counted.", style="dim")
    if cost is not None and cost["worth_considering"]:
        yield Text("\nSizes than which no other is both faster and cheaper", style="bold")
        yield _choices(cost["worth_considering"][:MOST_CHOICES])


def _is_told_otherwise(job: Job, predictions: Predictions) -> bool:
    """Whether the time left that is told is another one than that at its present size."""
    left, size = predictions["remaining_seconds"], (job["running"]["workers"], job["running"]["servers"])
    here = next((each for each in predictions["speeds"] if (each["workers"], each["servers"]) == size), None)
    at_size = None if here is None else here["remaining_seconds"]
    if left is None or at_size is None:
        return False
    return wording.duration(left["mean"]) != wording.duration(at_size["mean"])


def _present(job: Job) -> str:
    has, gets = wording.tasks(job["running"]), wording.tasks(job["wanted"])
    under_way = job["running"]["workers"] and job["wanted"]["workers"] and has != gets
    return f"the present size; the change to {gets} is under way" if under_way else "the present size"


def _choices(choices: Sequence[Choice]) -> Table:
    table = columns_table("size", "time left", "cost to finish")
    for choice in choices:
        table.add_row(
            f"{choice['workers']}w+{choice['servers']}p",
            wording.duration_interval(choice["remaining_seconds"]),
            money_interval(choice["cost"]),
        )
    return table


def speed_table(speeds: Sequence[SpeedPoint], job: Job) -> Table:
    """A row per number of workers, a column per number of servers."""
    by_size = {(point["workers"], point["servers"]): point for point in speeds}
    servers = sorted({point["servers"] for point in speeds})
    names = [f"p = {number}" for number in servers]
    table = columns_table("workers", *names, right=["workers"], folded=names)
    present = (job["running"]["workers"], job["running"]["servers"])
    for workers in sorted({point["workers"] for point in speeds}):
        cells = [_speed_cell(by_size.get((workers, number)), present) for number in servers]
        table.add_row(str(workers), *cells)
    return table


def _speed_cell(point: SpeedPoint | None, present: tuple[int, int]) -> Text:
    if point is None or point["steps_per_second"] is None:
        return Text(wording.UNKNOWN, style="dim")
    remaining = point["remaining_seconds"]
    left = wording.duration(None if remaining is None else remaining["mean"])
    is_present = (point["workers"], point["servers"]) == present
    speed = f"\n{wording.number(point['steps_per_second'])}/s"
    cost = "" if point["cost"] is None else f" {money(point['cost']['mean'])}"
    barred = "" if point.get("beyond") is None else " (no)"
    time = (f"{left} *", "bold green") if is_present else (left, "")
    return Text.assemble(time, (barred + speed + cost, "dim"))


# --- jobs that have ended --------------------------------------------------------------------------------------------


def _ended(job: Job, predictions: Predictions, outcome: Outcome, asked: Asked) -> Iterator[RenderableType]:
    told = wording.steps_told(job, outcome["steps"])
    facts: Facts = [
        ("Job", job["id"]),
        ("Ended", f"{job['state']}{' after' if outcome['steps'] else ','} {told}"),
        ("From start to end", wording.duration(outcome["seconds"])),
        ("Final loss", final_loss(job, outcome["final_loss"])),
    ]
    facts += [(name, wording.number(value, 4)) for name, value in sorted(outcome["metrics"].items())]
    if outcome["cost"] is not None:
        facts.append(("Cost", money(outcome["cost"])))
    yield facts_table([*facts, ("Judged by", _sources(job, predictions)), *_choice_facts(predictions, asked)])
    if outcome["review"]:
        yield review(outcome)
    measured = [point for point in predictions["speeds"] if point["measured"] is not None]
    if measured:
        how = "measured, in the mean over its life; fitted, to its newest ones and to those of ended jobs like it"
        yield Text(f"\nSpeeds: {how}", style="bold")
        yield _measured_table(measured)


def review(outcome: Outcome) -> RenderableType:
    """What was predicted on the way, and what came."""
    title = Text("\nWhat was predicted, and what came", style="bold")
    return Group(title, review_table(outcome["review"], outcome["steps"]))


def review_table(points: Sequence[ReviewPoint], steps: int) -> Table:
    """One line per prediction, the first at the top."""
    names = ("at", "all steps", "error", "held", "time left", "it took", "error", "held")
    table = columns_table(*names, right=["at", "error", "it took"])
    for point in points:
        left, took = wording.judged_duration(
            point["remaining_seconds"], point["true_remaining_seconds"], point.get("seconds_held")
        )
        table.add_row(
            wording.percent(point["part"]),
            _on_two_lines(wording.judged_count(point["total_steps"], steps, point.get("held"))),
            _error(point.get("error_percent")),
            _held(point.get("held")),
            _on_two_lines(left),
            took,
            _error(point.get("seconds_error_percent")),
            _held(point.get("seconds_held")),
        )
    held = f"true total: {wording.count(steps)} steps; held: by the 80 % interval"
    table.caption = f"{held}; {wording.UNKNOWN}: steps and times are noted at parts of each, not at one moment"
    return table


def _on_two_lines(interval: str) -> str:
    """Eight columns of whole intervals do not fit into 80 characters."""
    return interval.replace(" (", "\n(")


def _held(held: bool | None) -> Text:
    if held is None:
        return Text(wording.UNKNOWN)
    return Text("yes") if held else Text("no", style="yellow")


def _error(percent: float | None) -> str:
    if percent is None:
        return wording.UNKNOWN
    return f"{round(percent):+d} %" if round(percent) else "0 %"


def _measured_table(points: Sequence[SpeedPoint]) -> Table:
    table = columns_table("size", "measured", "fitted", right=["measured", "fitted"])
    for point in points:
        table.add_row(
            f"{point['workers']}w+{point['servers']}p",
            f"{wording.number(point['measured'])}/s",
            f"{wording.number(point['steps_per_second'])}/s",
        )
    return table


# --- money -----------------------------------------------------------------------------------------------------------


def money(value: float | None) -> str:
    """In whatever currency the service's prices are: 0.0042, 1.25, 310."""
    if value is None:
        return wording.UNKNOWN
    return f"{value:.2f}" if 1 <= abs(value) < 100 else wording.number(value)


def money_interval(interval: Interval | None) -> str:
    """With its interval: `1.25 (0.90–2.10)`."""
    if interval is None:
        return wording.UNKNOWN
    low, high = ("?" if bound is None else money(bound) for bound in (interval["low"], interval["high"]))
    return f"{money(interval['mean'])} ({low}–{high})"


def plan(answer: Plan) -> RenderableType:
    """What would happen if a job were submitted now."""
    cost = answer["cost"]
    facts: list[tuple[str, RenderableType]] = [
        ("Would get", f"{wording.tasks(answer['allocation'])} ({answer['reason']})"),
        ("Starts in", wording.wait(answer["expected"]["start_seconds"])),
        ("Ends in", wording.duration_interval(answer["expected"]["finish_seconds"])),
        ("Costs", wording.UNKNOWN if cost is None else wording.number(cost["mean"])),
        ("In words", "\n".join(answer["sentences"])),
    ]
    return _with_effects(facts_table(facts), "Other jobs", answer["effects"])


def change_plan(answer: ChangePlan) -> RenderableType:
    """What would happen if a job or a quota were changed now."""
    return _with_effects(Text("\n".join(answer["sentences"])), "Jobs of another size", answer["effects"])


def loses(effect: Effect) -> str:
    """What another job would lose to a plan: as the page says it."""
    if lost := wording.lost(effect.get("lost_steps", 0), effect.get("lost_seconds")):
        return lost
    return (
        "what it made since its checkpoint, unless it saves"
        if effect.get("loses_since_checkpoint")
        else wording.UNKNOWN
    )


def _with_effects(told: RenderableType, title: str, effects: Sequence[Effect]) -> RenderableType:
    if not effects:
        return told
    others = Table("job", "before", "after", "ends in", "would end in", "would lose", box=box.SIMPLE)
    for effect in effects:
        others.add_row(
            effect["job_id"],
            wording.tasks(effect["before"]),
            wording.tasks(effect["after"]),
            wording.duration_interval(effect["finish_seconds_before"]),
            wording.duration_interval(effect["finish_seconds_after"]),
            loses(effect),
        )
    return Group(told, Text(f"\n{title}", style="bold"), others)
