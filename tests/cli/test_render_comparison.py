"""Tables of simulated policies: whatever the width, every figure can be read."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from optimus_cli.simulation import Comparison
from optimus_simulator.outcome.comparison import PolicyResult, columns_among, compare
from optimus_simulator.outcome.outcome import JobRecord, Moment, Outcome

POLICIES = ("optimus", "optimus-paper, interval 600", "drf")


def outcome(policy: str, seed: int, deadline_at: float | None = None) -> Outcome:
    ends = [123_456.0 + 1_000.0 * k * (seed + 1) for k in range(4)]
    jobs = tuple(
        JobRecord(f"job-{k}", 0.0, 10.0, end, k, 5.0, 4.0, 1.5, deadline_at=deadline_at) for k, end in enumerate(ends)
    )
    return Outcome("trace", policy, seed, jobs, (Moment(0.0, 1, 0, 0.5),), 10)


@pytest.fixture(params=[None, 124_000.0])
def deadline_at(request: pytest.FixtureRequest) -> float | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def results(deadline_at: float | None) -> list[PolicyResult]:
    return compare([outcome(policy, seed, deadline_at) for policy in POLICIES for seed in range(2)])


@pytest.mark.parametrize("width", [50, 80, 120, 300])
def test_no_figure_is_cut_off(results: list[PolicyResult], width: int, deadline_at: float | None) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(Comparison(results))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for result in results:
        for figure in columns_among(results):
            assert figure.write(result.figures[figure.name].mean) in text
    assert "mean JCT s" in text
    assert ("deadlines met" in text) == (deadline_at is not None)


def test_a_wide_terminal_has_a_row_for_each_policy(results: list[PolicyResult]) -> None:
    console = Console(file=io.StringIO(), width=300)
    console.print(Comparison(results))
    assert isinstance(console.file, io.StringIO)
    rows = [line for line in console.file.getvalue().splitlines() if any(f" {policy} " in line for policy in POLICIES)]
    assert len(rows) == len(POLICIES)
