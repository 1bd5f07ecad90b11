"""Why a job has the size it has, and what rounds decided for it (`optimus explain`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from optimus_cli.bodies import Decision, Expected, Explanation
from optimus_cli.show import wording
from optimus_cli.show.layout import columns_table, facts_table
from optimus_cli.show.palette import STATE_STYLES
from optimus_cli.show.render_jobs import BEFORE_TASKS, state
from optimus_client.answers import ENDED

SHOWN_DECISIONS = 10
READ_DECISIONS = 100
"""Most rounds decide the same as the one before; those are one line."""


def explanation(
    why: Explanation, decisions: Sequence[Decision], now: datetime, *, with_fit: bool = False
) -> RenderableType:
    """Why the job has the size it has, what was believed when that was decided, and the decisions so far.

    `with_fit`: with the coefficients of the fitted models.
    """
    has_ended = why["state"] in ENDED
    is_starting = why["state"] in BEFORE_TASKS and why["allocation"]["workers"] and why["reason"] != "Cancelling"
    decided = why["reason"] or ""
    if decided and why["at"] is not None:
        decided += f", {wording.ago(why['at'], now)}"
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
        ("Gain of its last task", _gain(why["gain"])),
        ("Gain of one more", _gain(why["next_gain"])),
        ("Starts in", _start(why["expected"], now)),
        ("Ends in", wording.duration_interval(why["expected"]["finish_seconds"])),
    ]
    if decisions:
        believed += _forecast_facts(decisions[0], now, with_fit=with_fit)
    facts += [(name, value) for name, value in believed if value != wording.UNKNOWN]
    return Group(facts_table(facts), latest)


def _start(expected: Expected, now: datetime) -> str:
    """With the time of the look that told it: lists that were read before may show an older one."""
    told = wording.wait(expected["start_seconds"])
    looked = expected.get("computed_at")
    return told if looked is None or told == wording.UNKNOWN else f"{told}, by {wording.look(looked, now)}"


def _gain(gain: float | None) -> str:
    """A gain has no unit."""
    found = wording.number(gain)
    return found if found == wording.UNKNOWN else f"{found}, to compare jobs by"


_SPEED_FROM = {
    "analysis": ", calculated from its layers: none is measured yet",
    "similar jobs": ", by what ended jobs of its task had: none of its own is measured yet",
}


def _forecast_facts(decision: Decision, now: datetime, *, with_fit: bool) -> list[tuple[str, str]]:
    """What the round believed; a forecast may lack anything. What is left by now is in `Ends in`."""
    forecast = decision["forecast"]
    speed = wording.number(forecast.get("steps_per_second"))
    whence = _SPEED_FROM.get(forecast.get("speed_from") or "", "")
    had, has = decision["previous"], decision["allocation"]
    size = f" with {wording.tasks(had)}" if had != has and had["workers"] else ""  # the round saw what it had before
    told = f"{speed} steps/s{size}{whence} ({wording.ago(decision['at'], now)})"
    total = forecast.get("total_steps") if forecast.get("rule") else None  # without one it is a guess
    fit = [
        ("Loss curve", coefficients(forecast.get("loss_curve") or {})),
        ("Speed model", coefficients(forecast.get("speed_model") or {})),
    ]
    return [
        ("Steps in total", wording.count_interval(total)),
        ("Predicted speed", speed if speed == wording.UNKNOWN else told),
        ("Ends by", wording.ends_by(forecast.get("rule"), total)),
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
