"""Numbers, times and predictions as people read them. Everything that is not known is shown as a dash."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from optimus_cli.bodies import Allocation, Interval, Job, NodeResources
from optimus_contract.interval_words import NOT_KNOWN, in_unit_of, interval_words, is_limit, seems_held
from optimus_contract.progress_words import percent_done

UNKNOWN = "—"
MINUTE_SECONDS = 60
HOUR_SECONDS = 3600
DAY_SECONDS = 86400
LOSS_DIGITS = 4


def number(value: float | None, digits: int = 3) -> str:
    """`value` with `digits` significant digits, without an exponent where it stays short: 0.0312, 14.2, 1310."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - math.floor(math.log10(abs(value))) if value else digits - 1
    return f"{value:.{max(0, decimals)}f}"


def duration(seconds: float | None) -> str:
    """42 s, 3 min 05 s, 2 h 10 min, 4 d 3 h."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = max(0, math.floor(seconds + 0.5))
    if whole < MINUTE_SECONDS:
        return f"{whole} s"
    if whole < HOUR_SECONDS:
        return f"{whole // MINUTE_SECONDS} min {whole % MINUTE_SECONDS:02d} s"
    if whole < DAY_SECONDS:
        return f"{whole // HOUR_SECONDS} h {whole % HOUR_SECONDS // MINUTE_SECONDS:02d} min"
    return f"{whole // DAY_SECONDS} d {whole % DAY_SECONDS // HOUR_SECONDS} h"


def duration_interval(interval: Interval | None, finer: int = 0) -> str:
    """Time with its interval: `24 s (18–33)`, `5.4 min (2.1–?)`, `24 s (18 s–18.7 h)`; see `interval_words`.

    An end that nothing bounds is a question mark. `at most 77 s`: nothing is known but a limit. `finer`: so many more
    decimals.
    """
    if interval is None or not math.isfinite(interval["mean"]):
        return UNKNOWN
    mean, low, high = interval["mean"], interval["low"], interval["high"]
    words = interval_words(mean, low, high, finer)
    if is_limit(mean, low, high):
        return f"at most {words.mean}"
    if (low is None and high is None) or low == high == mean or (high is not None and high < 0.5):
        return words.mean
    return f"{words.mean} ({words.low}–{words.high})"


_FINEST = 3
"""Decimals more than usual, at most, to show on which side of a bound something is."""


def judged_duration(interval: Interval | None, came: float, held: bool | None) -> tuple[str, str]:
    """A predicted time with its interval, and what came, as finely as it takes to see whether it was `held`: with
    `28 s (24–37)` came `24 s`, or `23.8 s` with `28.4 s (24.2–37.1)`, which is not held."""
    if interval is None or not math.isfinite(interval["mean"]):
        return duration_interval(interval), duration(came)
    bounds = interval["mean"], interval["low"], interval["high"]
    fine = (finer for finer in range(_FINEST) if held is None or seems_held(*bounds, came, finer) == held)
    finer = next(fine, _FINEST)
    return duration_interval(interval, finer), in_unit_of(interval["mean"], came, finer)


def judged_count(interval: Interval | None, came: float, held: bool | None) -> str:
    """The same of steps: of what came, which is a whole number, nothing finer is to be said."""
    if interval is None or held is None:
        return count_interval(interval)
    low, high = interval["low"], interval["high"]

    def seems(finer: int) -> bool:
        is_above = low is None or round(low, finer) <= came
        return is_above and (high is None or came <= round(high, finer))

    return count_interval(interval, next((finer for finer in range(_FINEST) if seems(finer) == held), _FINEST))


def wait(start: Interval | None) -> str:
    """Time until a start, as `duration_interval`; `a moment`: it is due, and the job still waits."""
    if start is not None and max(start["mean"], start["high"] or 0.0) < 0.5:
        return "a moment"
    return duration_interval(start)


def count_interval(interval: Interval | None, finer: int = 0) -> str:
    """Steps with their interval: `1 310 (1 100–1 600)`. `finer`: decimals of its ends."""
    if interval is None or not math.isfinite(interval["mean"]):
        return UNKNOWN
    low, high = interval["low"], interval["high"]
    if low is None and high is None:
        return count(interval["mean"])
    if is_limit(interval["mean"], low, high):
        return f"at most {count(high)}"
    if low == high == interval["mean"]:
        return count(interval["mean"])
    return f"{count(interval['mean'])} ({_end(low, finer)}–{_end(high, finer)})"


def count(value: float | None, decimals: int = 0) -> str:
    """A whole number with thin groups: 12 345."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{round(value, decimals):,.{decimals}f}".replace(",", " ")


def exact(value: float) -> str:
    """What somebody has set, with the fraction that it may have: 12 345, 0.5."""
    return f"{value:,.15g}".replace(",", " ")  # as many digits as any such number keeps


def _end(value: float | None, finer: int) -> str:
    """One end of an interval of steps."""
    return NOT_KNOWN if value is None or not math.isfinite(value) else count(value, finer)


def percent(fraction: float | None) -> str:
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    return f"{percent_done(fraction)} %"


def ends_by(rule: str | None, total: Interval | None) -> str:
    """What is predicted to end a job: a part of its convergence rule by its field, or the script. `total`: its steps,
    of which fewer may be likely as well."""
    if rule is None:
        return UNKNOWN
    is_limit = rule in ("command_ends", "max_steps", "max_epochs")
    may_end_before = is_limit and total is not None and (total["low"] or 0.0) < total["mean"]
    return f"{'the script itself' if rule == 'command_ends' else rule}{', if nothing does before' * may_end_before}"


def tasks(allocation: Allocation) -> str:
    """Workers and servers: `3w+2p`, or `3w+2p a100` on GPUs; `3w` without servers (all-reduce)."""
    on = f" {allocation['gpu_type']}" if allocation.get("gpu_type") else ""
    if not allocation["workers"] and not allocation["servers"]:
        return "none"
    if not allocation["servers"]:
        return f"{allocation['workers']}w{on}"
    return f"{allocation['workers']}w+{allocation['servers']}p{on}"


def size(n_bytes: float) -> str:
    """Bytes in binary units: 512 MiB."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def gpus(by_type: Mapping[str, int]) -> str:
    return ", ".join(f"{number_of} × {kind}" for kind, number_of in sorted(by_type.items()) if number_of) or UNKNOWN


def used_of(used: NodeResources, capacity: NodeResources) -> str:
    """CPU slots in use: `6/8`."""
    return f"{used['cpu']:g}/{capacity['cpu']:g}"


_TRACEBACK = "Traceback (most recent call last):"
_OURS = re.compile(r'\s*File "[^"]*/optimus_(?:workers|client|contract)/')


def last_line(text: str) -> str:
    """The line of an error that says what happened: of a traceback the last one."""
    return (text.strip().splitlines() or [""])[-1]


def failure(text: str) -> str:
    """Why a job failed: what failed, and the traceback without frames of Optimus. What was printed before is in the
    log."""
    before, traceback, rest = text.partition(_TRACEBACK)
    if not traceback:
        return text
    kept: list[str] = []
    n_ours, is_ours = 0, False
    for line in rest.strip("\n").splitlines():
        if line.lstrip().startswith("File "):
            is_ours = _OURS.match(line) is not None
            n_ours += is_ours
        elif not line.startswith("    "):
            is_ours = False
        if not is_ours:
            kept.append(line)
    told = next((line.strip() for line in before.splitlines() if line.strip()), "")
    ours = [f"  ({n_ours} of Optimus' own frames left out)"] if n_ours else []
    return "\n".join([*([told] if told else []), traceback, *ours, *kept])


def moment(text: str) -> datetime:
    """A time of the API (ISO 8601; UTC unless it says otherwise)."""
    parsed = datetime.fromisoformat(text)
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def lost(steps: int, seconds: float | None) -> str:
    """What is lost: `86 steps (3 min 05 s of work)`, `3 min 05 s of work`; empty: nothing."""
    made = f"{count(steps)} step{'s' * (steps != 1)}" if steps else ""
    work = f"{duration(seconds)} of work" if seconds is not None and seconds >= 1 else ""
    return f"{made} ({work})" if made and work else made or work


def steps_told(job: Job, steps: int) -> str:
    """Steps of a job that has ended: `1 300 steps`. What a script made that told none is not known."""
    if not steps and job["spec"].get("command"):
        return "no step told"
    return f"{count(steps)} step{'s' * (steps != 1)}"


def ago(text: str | None, now: datetime) -> str:
    """`3 min 05 s ago`."""
    return UNKNOWN if text is None else f"{duration((now - moment(text)).total_seconds())} ago"


def look(at: str, now: datetime) -> str:
    """`the look at the queue 4 s ago`."""
    return f"the look at the queue {ago(at, now)}"
