"""`optimus simulate`: replay a trace in virtual time under one policy or several, and compare them; `optimus bound`:
what no scheduler can do better than; `optimus export-trace`: a trace of what really happened."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from optimus_cli import output
from optimus_cli.client import DEFAULT_URL
from optimus_cli.errors import BadInput, CliError
from optimus_cli.options import AsJson, Url, connect
from optimus_cli.resolve import check_project

if TYPE_CHECKING:  # the simulator is imported when it runs, as every other part
    from optimus_simulator.options import Options
    from optimus_simulator.scenario import Scenario
    from optimus_simulator.trace import Recorded

TRACES = (
    "pollux:FILE, philly:FILE, pcs:FILE, elasticflow:FILE, paper[:uniform|poisson|google], or a file in our own format."
)
DEFAULT_POLICIES = "optimus,optimus-paper,tiresias,drf"


def simulate(
    trace: Annotated[str, typer.Option(help=TRACES)],
    policy: Annotated[str, typer.Option(help="Policies, separated by commas.")] = DEFAULT_POLICIES,
    seeds: Annotated[
        int, typer.Option(min=1, max=10_000, help="Run each policy with so many seeds, counted from --seed.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    oracle: Annotated[bool, typer.Option("--oracle", help="Tell the scheduler the truth.")] = False,
    like_pollux: Annotated[
        bool, typer.Option("--like-pollux", help="The exact semantics of the published Pollux simulations.")
    ] = False,
    like_elasticflow: Annotated[
        bool, typer.Option("--like-elasticflow", help="The semantics of the published ElasticFlow simulations.")
    ] = False,
    elastic_batch: Annotated[
        bool, typer.Option("--elastic-batch", help="Let the jobs of a Pollux workload have their batch chosen.")
    ] = False,
    objective: Annotated[
        str | None, typer.Option(help="What the policy optimus is for, see `optimus serve`.", metavar="GOAL[:PART,...]")
    ] = None,
    bound: Annotated[
        bool,
        typer.Option("--bound", help="Compare with a nearer bound of what is possible: 30 s or so for 160 jobs."),
    ] = False,
    load: Annotated[str, typer.Option(help="Let jobs arrive so many times as fast; several as 0.5,1,2.")] = "1",
    interval: Annotated[
        str,
        typer.Option(
            help="Seconds between scheduling rounds; several as 60,300,600. Default: as the trace tells, else 60."
        ),
    ] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other option; see docs/simulate.md.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, max=1024, help="Default: one for each core.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a report with pictures into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace under several policies: what would each of them have done?"""
    # Small matrices, and a process for each core: threads for linear algebra would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from optimus_cli.simulation import recorded_by, run

    flags = [f"{name}=true" for name, given in (("elastic_batch", elastic_batch), ("bound", bound)) if given]
    flags += [f"objective={objective}"] if objective is not None else []
    options = options_of(oracle, like_pollux, [*(settings or []), *flags])
    if like_elasticflow:
        if like_pollux:
            raise BadInput("--like-elasticflow: the published simulations of --like-pollux are others; choose one")
        options = options.like_elasticflow()
    lived = recorded_by(trace)
    if lived is not None and not (like_pollux or like_elasticflow):
        options = _as_recorded(options, lived, [setting.partition("=")[0] for setting in settings or ()])
    variants = _variants(options, _numbers("--load", load), _numbers("--interval", interval))
    runs = range(seed, seed + seeds)
    scenarios = [each for label, changed in variants for each in _scenarios(trace, policy, runs, changed, label)]
    run(scenarios, processes or os.cpu_count() or 1, html, lived, as_json=as_json)


def _as_recorded(options: Options, lived: Recorded, given: list[str]) -> Options:
    """The options as the service had them that wrote the trace, but for those that are given."""
    from dataclasses import replace

    from optimus_simulator.options import LEAST_ROUND_SECONDS

    names = ("round_seconds", "learning_round_seconds", "restart_seconds")
    recorded = {name: getattr(lived, name) for name in names if name not in given}
    changed = {name: value for name, value in recorded.items() if value is not None}
    rounds = {name: max(value, LEAST_ROUND_SECONDS) for name, value in changed.items() if name != "restart_seconds"}
    return replace(options, **{**changed, **rounds})


def _numbers(name: str, text: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise BadInput(f"{name}: {error}") from error
    if text and not numbers:
        raise BadInput(f"{name}: name at least one")
    least, most = _BOUNDS[name]
    if not all(least <= number <= most for number in numbers):
        raise BadInput(f"{name}: from {least:g} to {most:g}, please")
    return numbers


_BOUNDS = {"--load": (1e-6, 1e6), "--interval": (0.1, 1e9)}
"""Of what may be given, both in them. Shorter rounds are more than a replay of any trace ends with."""


def _variants(options: Options, loads: list[float], intervals: list[float]) -> list[tuple[str, Options]]:
    """The options under every load and interval, with what tells them apart."""
    from dataclasses import replace

    settings = [("load", "load", loads), ("interval", "round_seconds", intervals)]
    variants = [("", options)]
    for title, field, values in settings:
        variants = [
            (
                f"{label}, {title} {value:g}" if len(values) > 1 else label,
                replace(before, **{field: value}),  # type: ignore[arg-type]
            )
            for label, before in variants
            for value in values or [getattr(before, field)]
        ]
    return variants


def options_of(oracle: bool, like_pollux: bool, settings: list[str]) -> Options:
    """The options that flags and NAME=VALUE words give.

    Raises:
        BadInput: there is no such option, or a value is none of its.
    """
    from dataclasses import replace

    from optimus_simulator.options import Options, option_value

    values: dict[str, float | bool | str] = {"oracle": oracle}
    for setting in settings:
        name, _, text = setting.partition("=")
        try:
            values[name] = option_value(name, text)
        except ValueError as error:
            raise BadInput(f"--set {setting}: {error}") from error
    options = replace(Options(), **values)  # type: ignore[arg-type]
    if options.elastic_batch and like_pollux:
        raise BadInput("--elastic-batch: the published simulations of --like-pollux are those of fixed batches")
    return options.like_pollux() if like_pollux else options


def _scenarios(trace: str, policies: str, seeds: range, options: Options, label: str) -> list[Scenario]:
    """`label` is what tells these from other scenarios of the same policies."""
    from optimus_scheduler.allocate.policies import UnknownPolicy, policy_named
    from optimus_simulator.scenario import Scenario

    names = [name.strip() for name in policies.split(",") if name.strip()]
    try:
        for name in names:
            policy_named(name)
    except UnknownPolicy as error:
        raise BadInput(str(error)) from error
    if not names:
        raise BadInput("--policy: name at least one")
    return [Scenario(trace, name, seed, options, name + label if label else "") for name in names for seed in seeds]


# --- what no scheduler can do better than ----------------------------------------------------------------------------


def bound(
    trace: Annotated[str, typer.Argument(help=TRACES)],
    seed: Annotated[int, typer.Option(min=0, help="Of a trace that is drawn.")] = 0,
    elastic_batch: Annotated[
        bool, typer.Option("--elastic-batch", help="Let the jobs of a Pollux workload have their batch chosen.")
    ] = False,
    load: Annotated[float, typer.Option(help="Let jobs arrive so many times as fast.")] = 1.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other option; see docs/simulate.md.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The least mean completion time and makespan, and the most deadlines met, of any scheduler on a trace."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from optimus_cli.simulation import recorded_by, show_bound

    _numbers("--load", str(load))
    elastic = ["elastic_batch=true"] if elastic_batch else []
    options = options_of(False, False, [*(settings or []), *elastic, f"load={load}"])
    lived = recorded_by(trace)
    if lived is not None:
        options = _as_recorded(options, lived, [setting.partition("=")[0] for setting in settings or ()])
    show_bound(trace, options, seed, lived, as_json=as_json)


# --- `optimus export-trace`: what really happened, for `optimus simulate` to replay ----------------------------------

STDOUT = Path("-")
_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}

Since = Annotated[
    str | None, typer.Option(metavar="MOMENT", help="From when on: 30d, 12h, or a date such as 2026-11-01.")
]


def export_trace(
    file: Annotated[Path, typer.Argument(help="Where the trace goes (.jsonl); - is stdout.")],
    since: Since = None,
    until: Annotated[str | None, typer.Option(metavar="MOMENT", help="Until when; default: now.")] = None,
    project: Annotated[str | None, typer.Option(help="Only jobs of this project.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Write the jobs that have ended as a trace: arrivals, requests, measured speeds and losses, ends.

    What would another policy have done? `optimus simulate --trace FILE --policy drf,optimus` tells.
    """
    if file.suffix == ".csv":  # by which `optimus simulate` knows another format
        raise BadInput(f"{file}: a trace is JSON lines: give a name such as {file.with_suffix('.jsonl')}")
    now = datetime.now(UTC)
    given = {
        "since": since and moment(since, now).isoformat(),
        "until": until and moment(until, now).isoformat(),
        "project": project,
    }
    params = {name: value for name, value in given.items() if value is not None}
    with connect(url) as client:
        if project is not None:
            check_project(client, project)
        end = _write(client.trace(params), file)
    left_out = [f"{end[name]} {why}" for name, why in _LEFT_OUT.items() if end[name]]
    rest = f"; left out: {', '.join(left_out)}" if left_out else ""
    output.say(f"wrote {end['jobs']} jobs to {'stdout' if file == STDOUT else file}{rest}")


_LEFT_OUT = {"active": "not ended yet", "unmeasured": "of which nothing was measured"}


def moment(text: str, now: datetime) -> datetime:
    """`30d` ago, or a date with or without a time; UTC unless it says otherwise. Raises `BadInput`."""
    if text[-1:] in _UNITS and text[:-1].isdecimal():
        try:
            return now - timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
        except (OverflowError, ValueError):  # it has too many digits for an integer, a duration or a date
            raise BadInput(f"{text[:100]!r} ago is before the year 1: give a later moment") from None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r}: expected something like 30d, 12h, 2026-11-01 or 2026-11-01T08:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _write(lines: Iterator[str], file: Path) -> dict[str, Any]:
    """Write the lines but the last, which says how many there were."""
    end: dict[str, Any] | None = None
    with _opened(file) as stream:
        for line in lines:
            found = json.loads(line)
            end = found.get("end")
            if end is None:
                stream.write(line + "\n")
    if end is None:
        raise CliError("The service stopped in the middle: the trace is not complete.")
    return end


@contextmanager
def _opened(file: Path) -> Iterator[IO[str]]:
    if file == STDOUT:
        yield sys.stdout
        return
    try:
        with file.open("w", encoding="utf-8") as stream:
            yield stream
    except OSError as error:
        raise CliError(f"{file}: {error.strerror or error}") from error
