"""Runs simulations with a progress bar, and shows what came out of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from optimus_cli import output
from optimus_cli.errors import BadInput, CliError, MissingPart
from optimus_simulator.bounds.bound import Bound
from optimus_simulator.errors import BadTrace, SimulatorError
from optimus_simulator.options import Options
from optimus_simulator.outcome.comparison import IN_SENTENCES, Column, PolicyResult, columns_among, compare, possible
from optimus_simulator.outcome.comparison import as_json as document
from optimus_simulator.outcome.outcome import Outcome
from optimus_simulator.scenario import Scenario, bound_of, recorded, run_all
from optimus_simulator.trace import Recorded


class Comparison:
    """Policies as rows where the terminal is wide enough; else figures as rows, as many policies beside each other as
    fit. With several seeds each number has its 95 % confidence interval.
    """

    def __init__(self, results: Sequence[PolicyResult]) -> None:
        """`results`: at least one."""
        self._results = results

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        outcome = self._results[0].outcomes[0]
        title = f"{outcome.trace}: {len(outcome.jobs)} jobs, {len(self._results[0].outcomes)} seed(s)"
        wide = _by_policy(title, self._results)
        if _fits(wide, console, options):
            yield wide
            return
        left = list(self._results)
        while left:
            count = len(left)
            while count > 1 and not _fits(_by_column(title, left[:count]), console, options):
                count -= 1
            yield _by_column(title, left[:count])
            left = left[count:]


def _fits(table: Table, console: Console, options: ConsoleOptions) -> bool:
    needed = Measurement.get(console, options.update(max_width=10_000), table).maximum
    return needed <= options.max_width


def _by_policy(title: str, results: Sequence[PolicyResult]) -> Table:
    table = Table(title=title)
    table.add_column("policy", style="bold", no_wrap=True)
    shown = _shown(results)
    for column in shown:
        table.add_column(column.title, justify="right", no_wrap=True)
    for result in results:
        table.add_row(result.policy, *(column.cell(result.figures) for column in shown))
    return table


def _shown(results: Sequence[PolicyResult]) -> list[Column]:
    return [column for column in columns_among(results) if column.name not in IN_SENTENCES]


def _by_column(title: str, results: Sequence[PolicyResult]) -> Table:
    table = Table(title=title)
    table.add_column("", style="bold", no_wrap=True)
    for result in results:
        table.add_column(result.policy, justify="right", overflow="fold")
    for column in _shown(results):
        table.add_row(column.title, *(column.cell(result.figures) for result in results))
    return table


def recorded_by(trace: str) -> Recorded | None:
    """What the trace tells of the service that wrote it.

    Raises:
        BadInput: the trace cannot be read.
    """
    try:
        return recorded(trace)
    except BadTrace as error:
        raise BadInput(str(error)) from error


def run(
    scenarios: Sequence[Scenario], processes: int, html: Path | None, lived: Recorded | None = None, *, as_json: bool
) -> None:
    """Run all scenarios and print the comparison; with `html` also write the report.

    `lived`: what the trace tells of the service that wrote it.

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
        happened = None if lived is None else lived.as_json()
        output.print_json({**document(results), "assumed": _assumed(scenarios), "happened": happened})
    else:
        output.show(Comparison(results))
        for line in _on_truth(_assumed(scenarios), lived):
            output.print_text(line)
        for line in possible(results):
            output.print_text(line)


def _assumed(scenarios: Sequence[Scenario]) -> dict[str, list[float]]:
    """What the figures depend on most beside the trace: all values of it among the scenarios."""
    names = ("round_seconds", "learning_round_seconds", "restart_seconds")
    return {name: sorted({getattr(each.options, name) for each in scenarios}) for name in names}


def _on_truth(assumed: dict[str, list[float]], lived: Recorded | None) -> list[str]:
    """What was assumed, where from, and what really happened."""
    rounds, learning, stops = (" or ".join(f"{each:.3g} s" for each in values) for values in assumed.values())
    if any(assumed["learning_round_seconds"]):
        rounds += f", every {learning} while the speed or end of a job is learned"
    stops += _measured(lived, assumed["restart_seconds"])
    lines = [
        f"Assumed: a round every {rounds}; no progress for {stops} at a start or change of size. Otherwise with "
        "--interval and --set restart_seconds=SECONDS."
    ]
    if lived is not None and lived.jct_seconds:
        happened = lived.as_json()
        met = f", deadlines met {lived.deadlines_met} of {lived.with_deadline}" if lived.with_deadline else ""
        lines.append(f"What happened: mean JCT {happened['mean_jct_seconds']:,.0f} s of {happened['jobs']} jobs{met}.")
    return lines


def _measured(lived: Recorded | None, stops: Sequence[float]) -> str:
    """Where the stops of all jobs are from, if that is the trace."""
    if lived is None or lived.restart_seconds is None or list(stops) != [lived.restart_seconds]:
        return ""
    return f" (median of {lived.measured_stops} that were measured)"


def show_bound(trace: str, options: Options, seed: int, lived: Recorded | None = None, *, as_json: bool) -> None:
    """Print what no scheduler can do better than. `lived`: what the trace tells of the service that wrote it.

    Raises:
        BadInput: the trace cannot be read, or there is no bound for its jobs.
    """
    try:
        found = bound_of(trace, options, seed)
    except BadTrace as error:
        raise BadInput(str(error)) from error
    if as_json:
        output.print_json(found.as_json())
    else:
        output.show(_bound_table(found))
        start = f"{found.start_seconds:.3g} s{_measured(lived, [found.start_seconds])}"
        output.print_text(
            f"Assumed: no progress for {start} at the first start of each job; later changes, rounds, faults and "
            "quotas cost nothing. Otherwise with --set restart_seconds=SECONDS. With the same, no simulation is better."
        )


def _bound_table(found: Bound) -> Table:
    table = Table(title=f"{found.trace}: {found.jobs} jobs, any scheduler")
    table.add_column("", style="bold")
    table.add_column("no better than", justify="right")
    table.add_row("mean JCT s", f"{found.mean_jct_seconds:,.0f}")
    table.add_row("  every job alone", f"{found.alone_seconds:,.0f}")
    table.add_row("  squashed area", f"{found.squashed_area_seconds:,.0f}")
    programme = found.programme_seconds
    table.add_row("  linear programme", "too many jobs" if programme is None else f"{programme:,.0f}")
    table.add_row("makespan s", f"{found.makespan_seconds:,.0f}")
    if found.deadlines_met is not None:
        table.add_row("deadlines met", f"{found.deadlines_met:.1%}")
    return table


def _watched(scenarios: Sequence[Scenario], processes: int) -> list[Outcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=output.error_console(), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("simulating", total=len(scenarios))

        def done(index: int, _outcome: Outcome) -> None:
            bar.update(task, advance=1, description=f"{scenarios[index].policy}, seed {scenarios[index].seed}")

        return run_all(scenarios, processes, done)


def _write_report(results: Sequence[PolicyResult], scenarios: Sequence[Scenario], path: Path) -> None:
    try:
        from optimus_simulator.outcome.report import write_report
    except ImportError as error:
        raise MissingPart("reports need matplotlib: pip install 'optimus-scheduler[simulator]'") from error
    try:
        write_report(results, [scenario.command for scenario in scenarios], path)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from error
    output.say(f"wrote {path}")
