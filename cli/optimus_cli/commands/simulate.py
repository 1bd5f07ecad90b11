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

DEFAULT_POLICIES = "optimus,optimus-paper,tiresias,drf"


def simulate(
    trace: Annotated[
        str, typer.Option(help="pollux:FILE, philly:FILE, paper[:uniform|poisson|google], or a file in our own format.")
    ],
    policy: Annotated[str, typer.Option(help="Policies, separated by commas.")] = DEFAULT_POLICIES,
    seeds: Annotated[int, typer.Option(min=1, help="Run each policy with so many seeds, counted from --seed.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    oracle: Annotated[bool, typer.Option("--oracle", help="Tell the scheduler the truth.")] = False,
    like_pollux: Annotated[
        bool, typer.Option("--like-pollux", help="The exact semantics of the published Pollux simulations.")
    ] = False,
    load: Annotated[float, typer.Option(min=0.01, help="Let jobs arrive so many times as fast.")] = 1.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other option; see docs/simulate.md.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Default: one for each core.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a report with pictures into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace under several policies: what would each of them have done?"""
    from optimus_cli.simulation import run

    options = _options(oracle, like_pollux, load, settings or [])
    scenarios = _scenarios(trace, policy, range(seed, seed + seeds), options)
    run(scenarios, processes or os.cpu_count() or 1, html, as_json=as_json)


def _options(oracle: bool, like_pollux: bool, load: float, settings: list[str]) -> Options:
    from dataclasses import replace

    from optimus_simulator.options import Options, option_value

    values: dict[str, float | bool] = {"oracle": oracle, "load": load}
    for setting in settings:
        name, _, text = setting.partition("=")
        try:
            values[name] = option_value(name, text)
        except ValueError as error:
            raise BadInput(f"--set {setting}: {error}") from error
    options = replace(Options(), **values)  # type: ignore[arg-type]
    return options.like_pollux() if like_pollux else options


def _scenarios(trace: str, policies: str, seeds: range, options: Options) -> list[Scenario]:
    from optimus_scheduler.policies import UnknownPolicy, policy_named
    from optimus_simulator.scenario import Scenario

    names = [name.strip() for name in policies.split(",") if name.strip()]
    try:
        for name in names:
            policy_named(name)
    except UnknownPolicy as error:
        raise BadInput(str(error)) from error
    if not names:
        raise BadInput("--policy: name at least one")
    return [Scenario(trace, name, seed, options) for name in names for seed in seeds]
