"""Simulated policies side by side, without cutting any figure off: half a number is no number."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

from optimus_simulator.comparison import Estimate, Figure, PolicyResult, figures_among


class Comparison:
    """Policies as rows where the terminal is wide enough; else figures as rows, as many policies beside each other as
    fit. With several seeds each figure has its 95 % confidence interval.
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
            while count > 1 and not _fits(_by_figure(title, left[:count]), console, options):
                count -= 1
            yield _by_figure(title, left[:count])
            left = left[count:]


def _fits(table: Table, console: Console, options: ConsoleOptions) -> bool:
    needed = Measurement.get(console, options.update(max_width=10_000), table).maximum
    return needed <= options.max_width


def _by_policy(title: str, results: Sequence[PolicyResult]) -> Table:
    table = Table(title=title)
    table.add_column("policy", style="bold", no_wrap=True)
    shown = figures_among(results[0].figures)
    for figure in shown:
        table.add_column(figure.title, justify="right", no_wrap=True)
    for result in results:
        table.add_row(result.policy, *(_cell(result.figures[figure.name], figure) for figure in shown))
    return table


def _by_figure(title: str, results: Sequence[PolicyResult]) -> Table:
    table = Table(title=title)
    table.add_column("", style="bold", no_wrap=True)
    for result in results:
        table.add_column(result.policy, justify="right", overflow="fold")
    for figure in figures_among(results[0].figures):
        table.add_row(figure.title, *(_cell(result.figures[figure.name], figure) for result in results))
    return table


def _cell(estimate: Estimate, figure: Figure) -> str:
    spread = f" ± {figure.write(estimate.half_width)}" if estimate.half_width else ""
    return figure.write(estimate.mean) + spread
