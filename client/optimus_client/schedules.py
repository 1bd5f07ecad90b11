"""What a learning-rate scheduler of torch will do: a twin of it is asked, and the training's own stays as it is.

Nothing of torch is imported; a scheduler that is not known, or that waits for what the training will show
(`ReduceLROnPlateau`), has no plan.
"""

from __future__ import annotations

import copy
import logging
import warnings
from bisect import bisect_right
from typing import Any, Callable, Optional

log = logging.getLogger("optimus_client")

POINTS = 2000
"""A longer plan is told at so many steps, evenly spaced."""
MOST_CALLS = 20_000
"""Calls of a twin's `step`, each some 10 microseconds; a schedule that can be asked for any step needs none."""

RateOf = Callable[[int], float]
"""The rate after so many calls of the scheduler's `step`, from now on; asked in increasing order."""


def planned_rates(
    scheduler: Any, *, step: int, total_steps: int, calls: int = 1, per_steps: int = 1, begun: int = 0
) -> list[tuple[int, float]] | None:
    """Steps from `step` to before `total_steps`, and the learning rate of each; None if they are not known.

    Of several parameter groups the first one's. The training calls `scheduler.step()` `calls` times after every
    `per_steps` optimizer steps, of which `begun` are done already. Never raises.
    """
    last = total_steps - 1
    if last < step:
        return None
    try:
        n = min(last - step, POINTS)
        steps = sorted({step + index * (last - step) // n for index in range(n + 1)}) if n else [step]
        after = [(each - step + begun) // per_steps * calls for each in steps]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rate_of = _rate_of(scheduler, after[-1])
            return None if rate_of is None else [(each, float(rate_of(done))) for each, done in zip(steps, after)]
    except Exception as error:  # noqa: BLE001 - a scheduler may be anybody's code; without a plan the training goes on
        log.debug("no learning rates are planned: %s: %s", type(error).__name__, error)
        return None


def _rate_of(scheduler: Any, n_calls: int) -> RateOf | None:
    if _waits_for_metrics(scheduler):
        return None
    present = float(scheduler.optimizer.param_groups[0]["lr"])
    twin = _twin(scheduler)
    at, now = _at_any_step(twin), getattr(scheduler, "last_epoch", 0)
    if at is not None and abs(float(at(now)) - present) <= 1e-6 * abs(present) + 1e-12:
        return lambda done: at(now + done)
    return _stepped(_twin(scheduler)) if n_calls <= MOST_CALLS else None


def _waits_for_metrics(scheduler: Any) -> bool:
    names = {kind.__name__ for kind in type(scheduler).__mro__}
    return "ReduceLROnPlateau" in names or any(map(_waits_for_metrics, getattr(scheduler, "_schedulers", ())))


def _stepped(twin: Any) -> RateOf:
    done = 0

    def rate_of(wanted: int) -> float:
        nonlocal done
        while done < wanted:
            twin.step()
            done += 1
        return float(twin.optimizer.param_groups[0]["lr"])

    return rate_of


def _at_any_step(twin: Any) -> Optional[RateOf]:
    """The rate at any count of its steps, of those schedulers of torch that are functions of it."""
    kind = type(twin)
    if not kind.__module__.startswith("torch.optim"):
        return None
    if kind.__name__ == "SequentialLR":
        parts = [at for each in twin._schedulers if (at := _at_any_step(each)) is not None]
        return _in_turn(parts, [0, *twin._milestones]) if len(parts) == len(twin._schedulers) else None
    if kind.__name__ == "LambdaLR":
        return lambda count: twin.base_lrs[0] * twin.lr_lambdas[0](count)
    formula = getattr(twin, "_get_closed_form_lr", None)
    if formula is None and kind.__name__ in ("OneCycleLR", "CyclicLR"):
        formula = twin.get_lr
    return None if formula is None else lambda count: _asked(twin, formula, count)


def _in_turn(parts: list[RateOf], begins: list[int]) -> RateOf:
    def rate_of(count: int) -> float:
        place = bisect_right(begins, count) - 1
        return parts[place](count - begins[place])

    return rate_of


def _asked(twin: Any, formula: Callable[[], Any], count: int) -> float:
    twin.last_epoch = count
    return float(formula()[0])


# --- twins -----------------------------------------------------------------------------------------------------------


class _Groups:
    """What a scheduler needs of an optimizer: the values of its parameter groups, and none of the parameters."""

    _opt_called = True

    def __init__(self, optimizer: Any) -> None:
        self.param_groups = [
            {name: _plain(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        self.defaults = dict(getattr(optimizer, "defaults", {}))

    def step(self) -> None:
        """The scheduler looks whether there is one."""

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _twin(scheduler: Any, groups: _Groups | None = None) -> Any:
    """The scheduler with groups of its own. What it calls (functions of the script) is shared."""
    groups = groups or _Groups(scheduler.optimizer)
    twin = object.__new__(type(scheduler))
    for name, value in vars(scheduler).items():
        if name == "optimizer":
            twin.optimizer = groups
        elif name == "_schedulers":
            twin._schedulers = [_twin(each, groups) for each in value]
        elif name not in ("step", "get_lr"):  # wrapped for the training's own
            vars(twin)[name] = copy.copy(value) if isinstance(value, (list, dict)) else value
    return twin


def _plain(value: Any) -> Any:
    return float(value) if hasattr(value, "fill_") else copy.copy(value)
