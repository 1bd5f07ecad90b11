"""Runs simulations with a progress bar, and shows what came out of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from optimus_cli import output
from optimus_cli.errors import BadInput, CliError, MissingPart
from optimus_simulator.comparison import Estimate, PolicyResult, compare
from optimus_simulator.comparison import as_json as document
from optimus_simulator.errors import BadTrace, SimulatorError
from optimus_simulator.figures import FIGURES, Figure
from optimus_simulator.outcome import Outcome
from optimus_simulator.scenario import Scenario
from optimus_simulator.sweep import run_all


def run(scenarios: Sequence[Scenario], processes: int, html: Path | None, *, as_json: bool) -> None:
    """Run all scenarios and print the comparison; with `html` also write the report.

    Raises:
        BadInput: the trace cannot be read.
        CliError: a simulation failed, or the report cannot be written.
    """
    try:
        outcomes = _watched(scenarios, processes)
    except BadTrace as error:
        raise BadInput(str(error)) from error
    except SimulatorError as error:
        raise CliError(str(error)) from error
    results = compare(outcomes)
    if html is not None:
        _write_report(results, scenarios, html)
    if as_json:
        output.print_json(document(results))
    else:
        output.show(table(results))


def _watched(scenarios: Sequence[Scenario], processes: int) -> list[Outcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=output.error_console(), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("simulating", total=len(scenarios))

        def done(index: int, _outcome: Outcome) -> None:
            bar.update(task, advance=1, description=f"{scenarios[index].policy}, seed {scenarios[index].seed}")

        return run_all(scenarios, processes, done)


def table(results: Sequence[PolicyResult]) -> Table:
    """Policies as rows; with several seeds each figure has its 95 % confidence interval."""
    outcome = results[0].outcomes[0]
    shown = Table(title=f"{outcome.trace}: {len(outcome.jobs)} jobs, {len(results[0].outcomes)} seed(s)")
    shown.add_column("policy", style="bold", no_wrap=True)
    for figure in FIGURES:
        shown.add_column(figure.title, justify="right")
    for result in results:
        shown.add_row(result.policy, *(_cell(result.figures[figure.name], figure) for figure in FIGURES))
    return shown


def _cell(estimate: Estimate, figure: Figure) -> str:
    spread = f" ± {figure.write(estimate.half_width)}" if estimate.half_width else ""
    return figure.write(estimate.mean) + spread


def _write_report(results: Sequence[PolicyResult], scenarios: Sequence[Scenario], path: Path) -> None:
    try:
        from optimus_simulator.report import write_report
    except ImportError as error:
        raise MissingPart("reports need matplotlib: pip install 'optimus-scheduler[simulator]'") from error
    try:
        write_report(results, [scenario.command for scenario in scenarios], path)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from error
    output.say(f"wrote {path}")
