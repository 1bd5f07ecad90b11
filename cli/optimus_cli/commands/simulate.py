"""`optimus simulate`: replay a trace in virtual time under one policy or several, and compare them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optimus_cli.errors import BadInput
from optimus_cli.options import AsJson

if TYPE_CHECKING:  # the simulator is imported when it runs, as every other part
    from optimus_simulator.options import Options
    from optimus_simulator.scenario import Scenario

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
    elastic_batch: Annotated[
        bool, typer.Option("--elastic-batch", help="Let the jobs of a Pollux workload have their batch chosen.")
    ] = False,
    bound: Annotated[
        bool,
        typer.Option("--bound", help="Say how far each policy is from what is possible for any; see docs/bounds.md."),
    ] = False,
    load: Annotated[str, typer.Option(help="Let jobs arrive so many times as fast; several as 0.5,1,2.")] = "1",
    interval: Annotated[
        str, typer.Option(help="Seconds between scheduling rounds; several as 60,300,600. Default: 60.")
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
    from optimus_cli.simulation import run

    flags = [f"{name}=true" for name, given in (("elastic_batch", elastic_batch), ("bound", bound)) if given]
    options = options_of(oracle, like_pollux, [*(settings or []), *flags])
    variants = _variants(options, _numbers("--load", load), _numbers("--interval", interval))
    runs = range(seed, seed + seeds)
    scenarios = [each for label, changed in variants for each in _scenarios(trace, policy, runs, changed, label)]
    run(scenarios, processes or os.cpu_count() or 1, html, as_json=as_json)


def _numbers(name: str, text: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise BadInput(f"{name}: {error}") from error
    if any(number <= 0 for number in numbers):
        raise BadInput(f"{name}: above 0, please")
    return numbers


def _variants(options: Options, loads: list[float], intervals: list[float]) -> list[tuple[str, Options]]:
    """The options under every load and interval, with what tells them apart."""
    from dataclasses import replace

    told = [("load", "load", loads), ("interval", "round_seconds", intervals)]
    variants = [("", options)]
    for title, field, values in told:
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

    values: dict[str, float | bool] = {"oracle": oracle}
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
