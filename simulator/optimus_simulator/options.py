"""The options of a simulation, each with its reason. Seconds; probabilities and fractions from 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Self, get_type_hints

from optimus_contract.fields import zero_or
from optimus_contract.limits import LEAST_PART, MAX_SECONDS
from optimus_contract.message import About
from optimus_scheduler.objective import MEAN_JCT, Objective
from optimus_scheduler.settings import Settings
from optimus_simulator.declared import within

DAY_SECONDS = 86_400.0
LEAST_ROUND_SECONDS = 0.1
"""Shorter rounds are more than a replay of any trace ends with."""
LEAST_LOAD, MOST_LOAD = 1e-6, 1e6
_LEAST_HOURS = 0.01
"""Between failures: half a minute, in which no job gets anywhere."""


_USUAL = Settings()
Period = Annotated[float, About(ge=LEAST_ROUND_SECONDS, le=MAX_SECONDS)]
Wait = Annotated[float, About(ge=0, le=MAX_SECONDS)]
Spread = Annotated[float, About(ge=0, le=10)]
"""Of a logarithm, or relative: far more than anything that was measured."""
Hours = Annotated[float, About(ge=_LEAST_HOURS, le=MAX_SECONDS)]
Rarity = Annotated[float, About(ge=0, le=MAX_SECONDS), zero_or(_LEAST_HOURS)]
Part = Annotated[float, About(ge=0, le=1)]
Left = Annotated[float, About(ge=LEAST_PART, le=1)]
Lost = Annotated[float, About(ge=0, le=1 - LEAST_PART)]


@dataclass(frozen=True, slots=True)
class Options:
    """The shell's behaviour and the faults of the simulated cluster."""

    # --- rounds
    round_seconds: Period = 60.0
    """Period of scheduling rounds."""
    learning_round_seconds: Annotated[float, About(ge=0, le=MAX_SECONDS), zero_or(LEAST_ROUND_SECONDS)] = 0.0
    """A round comes so soon after one by which the speed or end of a job is being learned, like in the live service; 0:
    not before its time."""
    rounds_on_events: bool = True
    """Also a round when a job arrives or ends and when a task or node fails or comes back, like the live service."""
    debounce_seconds: Wait = 1.0
    """... so long after the event: events come in swarms."""

    # --- what it chooses sizes for
    objective: str = str(MEAN_JCT)
    """Of the policy `optimus`: jct, makespan, deadlines, fairness or a mix, jct:0.7,makespan:0.3."""

    # --- what a change has to bring: constants of `optimus_scheduler.settings`, to see whether they matter
    rescale_margin: Annotated[float, About(ge=0, le=1000)] = _USUAL.rescale_margin
    """A change has to save so many times its stop, ..."""
    doubt_margin: Annotated[float, About(ge=0, le=1000)] = _USUAL.doubt_margin
    """... so many times more where speeds are in doubt, ..."""
    least_speedup: Part = _USUAL.least_speedup
    """... and this part of the job's speed at least."""

    # --- changes of size
    restart_seconds: Wait = 30.0
    """A job that gets its first tasks, or others, makes no progress for so long (measured for checkpoint-restart)."""
    restart_spread: Spread = 0.0
    """Log-normal spread of that."""

    # --- what the scheduler sees
    oracle: bool = False
    """The scheduler gets the true speeds and ends instead of forecasts."""
    convergence_error: Spread = 0.0
    """With `oracle`: relative error of the steps left; it fades as the job comes to its end."""
    speed_error: Spread = 0.0
    """With `oracle`: relative error of each speed."""
    speed_noise: Spread = 0.05
    """Spread of one measured speed: what was measured on real clusters."""
    loss_noise: Spread = 0.03
    """Spread of one reported loss."""
    noise_scale_noise: Spread = 0.2
    """Spread of one reported noise scale of a job with an elastic batch: it is a ratio of two small differences."""

    deadlines: bool = True
    """Deadlines are told; otherwise they are only counted, for policies that do not know any: told ones raise sizes."""

    promises: bool = False
    """The queue is simulated forward, and what that says of the time left is judged; otherwise what rounds say is."""

    promise_spacing: Annotated[float, About(ge=1, le=MAX_SECONDS)] = 1.08
    """What is said of a job's time left is recorded at ages that grow by this factor: the judged one is that old."""

    learn_from_finished_jobs: bool = True
    """Jobs are predicted with what ended ones of the same family did, like in the live service."""

    # --- faults
    task_hours: Rarity = 0.0
    """Mean hours between failures of one task; 0: they never fail."""
    node_hours: Rarity = 0.0
    """Mean hours between failures of one node; 0: they never fail."""
    repair_seconds: Wait = 1800.0
    """Until a failed node is back, or another one for a spot node."""
    spot_nodes: Part = 0.0
    """Fraction of the nodes that are spot nodes, drawn from the seed, ..."""
    spot_hours: Hours = 12.0
    """... which are taken away after so many hours, on average, ..."""
    notice_seconds: Wait = 120.0
    """... and are told so long before: they are drained, and what is still there then is lost."""
    late_nodes: Part = 0.0
    """Fraction of the nodes that join only ..."""
    late_seconds: Wait = 3600.0
    """... so long after the beginning."""
    straggling: Part = 0.0
    """Probability that a started worker is slow ..."""
    straggler_speed: Left = 0.5
    """... and what it then leaves of its job's speed, until the job changes."""
    interference: Lost = 0.0
    """Fraction of its speed that a job on several nodes loses where another such job sends through the same node."""

    uneven_parameters: bool = False
    """With the `paper` trace: `drf` and `tetris` divide parameters as MXNet does it, as in the paper's comparison."""

    # --- the experiment
    bound: bool = False
    """What no scheduler can do better than, with which each run is compared, also by a linear programme: nearer, and
    half a minute for 160 jobs (docs/bounds.md)."""
    elastic_batch: bool = False
    """All jobs of a Pollux workload that ran with several batches let theirs be chosen."""
    blind: bool = False
    """Jobs of a trace of PCS or ElasticFlow do not tell how many steps they will take."""
    load: Annotated[float, About(ge=LEAST_LOAD, le=MOST_LOAD)] = 1.0
    """Jobs arrive so many times as fast as in the trace."""
    cluster: Annotated[float, About(ge=LEAST_PART, le=MOST_LOAD)] = 1.0
    """The cluster has so many times the nodes of the trace, of each capacity: what would half of it do, or twice?"""
    pollux: bool = False
    """Semantics of the published Pollux simulations: rounds only on ticks, epochs of whole seconds, their oracle."""
    elasticflow: bool = False
    """Semantics of the published ElasticFlow simulations: rounds at events, a minute apart; declined jobs leave."""
    limit_days: Annotated[float, About(ge=1e-4, le=MAX_SECONDS / DAY_SECONDS)] = 400.0
    """Virtual time after which a simulation that has not ended is stuck."""

    def like_pollux(self) -> Self:
        """These options with everything set as the published simulations have it."""
        changed = {name: getattr(self, name) for name in (field.name for field in fields(self))}
        changed |= {"round_seconds": 60.0, "rounds_on_events": False, "restart_seconds": 30.0, "restart_spread": 0.0}
        changed |= {"oracle": True, "pollux": True}
        return type(self)(**changed)

    def like_elasticflow(self) -> Self:
        """These options with everything set as the published ElasticFlow simulations have it."""
        free = replace(self, restart_seconds=0.0, restart_spread=0.0, debounce_seconds=0.0, rounds_on_events=True)
        return replace(free, oracle=True, elasticflow=True)

    def settings(self) -> Settings:
        """The constants of the rounds."""
        kept = {name: getattr(self, name) for name in _OF_ROUNDS}
        return Settings(objective=Objective.of(self.objective), **kept)

    def flags(self) -> list[str]:
        """The command-line words that give these options."""
        words = []
        for option in fields(self):
            value = getattr(self, option.name)
            if value != option.default:
                words += ["--set", f"{option.name}={value}"]
        return words


_OF_ROUNDS = ("rescale_margin", "doubt_margin", "least_speedup")


def option_value(name: str, text: str) -> float | bool | str:
    """The value of one option as it is written on a command line.

    Raises:
        ValueError: there is no such option, or the text is not a value of it.
    """
    kinds, bounds = {option.name: type(option.default) for option in fields(Options)}, _bounds()
    if name not in kinds:
        raise ValueError(f"unknown option {name!r}; there are {', '.join(kinds)}")
    if kinds[name] is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name} is true or false, not {text!r}")
        return text.lower() == "true"
    if kinds[name] is str:
        return str(Objective.of(text))
    try:
        value: float | str = float(text)
    except ValueError:
        value = text  # which is no number, and said to be none
    return within(bounds[name], value, name)


@cache
def _bounds() -> dict[str, Any]:
    """The declared type of each option."""
    return get_type_hints(Options, include_extras=True)
