"""Runs simulations with a progress bar, and shows what came out of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from optimus_cli import output
from optimus_cli.errors import BadInput, CliError, MissingPart
from optimus_cli.render_comparison import Comparison
from optimus_simulator.comparison import PolicyResult, compare
from optimus_simulator.comparison import as_json as document
from optimus_simulator.errors import BadTrace, SimulatorError
from optimus_simulator.outcome import Outcome
from optimus_simulator.scenario import Scenario, run_all


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
        output.show(Comparison(results))


def _watched(scenarios: Sequence[Scenario], processes: int) -> list[Outcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=output.error_console(), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("simulating", total=len(scenarios))

        def done(index: int, _outcome: Outcome) -> None:
            bar.update(task, advance=1, description=f"{scenarios[index].policy}, seed {scenarios[index].seed}")

        return run_all(scenarios, processes, done)


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
