"""Handing out: quick ways give what the plain ones would."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_scheduler.allocate.optimus.arrays import FloatArray, IntArray, largest_first, within
from optimus_scheduler.allocate.optimus.candidates import Candidates
from optimus_scheduler.allocate.optimus.greedy import RemainderFill, envelope
from optimus_scheduler.allocate.optimus.guarantees import in_turn
from optimus_scheduler.allocate.optimus.reasons import first_of_largest, first_of_largest_among
from optimus_scheduler.model import TOLERANCE

LEAST_TASK_GAIN = 0.01

frontiers = st.lists(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 2), st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0])),
        min_size=1,
        max_size=7,
    ),
    min_size=1,
    max_size=6,
)


def table(drawn: list[list[tuple[int, int, float]]]) -> tuple[Candidates, FloatArray]:
    """Each job's sizes, grown step by step from nothing, and what they need."""
    columns = [np.cumsum([(0, 0, 0.0), *steps], axis=0) for steps in drawn]
    job = np.repeat(np.arange(len(drawn)), [len(column) for column in columns])
    workers, servers, worth = np.concatenate(columns).T
    first = np.searchsorted(job, np.arange(len(drawn) + 1))
    n = len(drawn)
    counts = workers.astype(np.int64), servers.astype(np.int64)
    cost = workers + 0.5 * servers
    ones = np.ones(n)
    found = Candidates(job, *counts, cost, worth, worth, worth, first, ones, ones, np.full(n, 0.05), ones)
    return found, np.stack([workers, servers], axis=1)


def filled_plainly(
    candidates: Candidates, demand: FloatArray, row: IntArray, available: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Everything is looked at again after each size that is given."""
    index = np.arange(len(candidates))
    above = index[(index > row[candidates.job]) & (candidates.worth > candidates.worth[row][candidates.job])]
    while len(above):
        now = row[candidates.job[above]]
        usable = (demand[above] - demand[now] <= available + TOLERANCE).all(axis=1)
        usable &= (above > now) & (candidates.worth[above] > candidates.worth[now])
        usable &= candidates.is_worthwhile(now, above, LEAST_TASK_GAIN)
        above, now = above[usable], now[usable]
        if not len(above):
            break
        best = int(np.argmax(candidates.gain(now, above)))
        available = available - (demand[above[best]] - demand[now[best]])
        row[candidates.job[above[best]]] = above[best]
    return row, available


@settings(max_examples=200, deadline=None)
@given(frontiers, st.tuples(st.integers(0, 40), st.integers(0, 25)))
def test_filling_gives_what_looking_at_everything_again_gives(
    drawn: list[list[tuple[int, int, float]]], cores: tuple[int, int]
) -> None:
    candidates, demand = table(drawn)
    start, available = candidates.first[:-1], np.array(cores, dtype=np.float64)
    filling = RemainderFill(candidates, demand, start.copy(), available, LEAST_TASK_GAIN)
    index = np.arange(len(candidates))
    filling.fill(index[(index > start[candidates.job]) & (candidates.worth > 0)])
    row, left = filled_plainly(candidates, demand, start.copy(), available)
    assert filling.row.tolist() == row.tolist()
    assert filling.available.tolist() == left.tolist()


@settings(max_examples=200, deadline=None)
@given(frontiers, st.sampled_from([1, 60]))
def test_gains_fall_along_an_envelope_and_nothing_lies_above_it(
    drawn: list[list[tuple[int, int, float]]], times: int
) -> None:
    drawn = drawn * times  # many rows are looked at together, few one by one
    candidates, _ = table(drawn)
    rows = envelope(candidates, np.arange(len(candidates)))
    for j in range(len(drawn)):
        own = rows[candidates.job[rows] == j]
        gains = np.diff(candidates.worth[own]) / np.diff(candidates.cost[own])
        assert (np.diff(gains) < 0).all()
        every = slice(candidates.first[j], candidates.first[j + 1])
        line = np.interp(candidates.cost[every], candidates.cost[own], candidates.worth[own])
        assert (candidates.worth[every] <= line + 1e-9).all()


leaps = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, 0.5, 3.0])), min_size=6, max_size=6)


@settings(max_examples=200, deadline=None)
@given(frontiers, leaps)
def test_an_envelope_of_many_jobs_has_that_of_each(
    drawn: list[list[tuple[int, int, float]]], leaps: list[tuple[int, float]]
) -> None:
    """What a job has is worth a leap more than all else, as it costs no change."""
    drawn = drawn * 30
    candidates, _ = table(drawn)
    for j, first in enumerate(candidates.first[:-1].tolist()):
        place, leap = leaps[j % len(leaps)]
        candidates.worth[min(first + place, int(candidates.first[j + 1]) - 1)] += leap
    each = [envelope(candidates, np.arange(a, b)).tolist() for a, b in pairwise(candidates.first.tolist())]
    assert envelope(candidates, np.arange(len(candidates))).tolist() == [row for rows in each for row in rows]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12), st.integers(0, 20), st.integers(0, 20))
def test_in_turn_each_gets_it_that_still_fits(asked: list[tuple[int, int]], cpu: int, memory: int) -> None:
    left = [float(cpu), float(memory)]
    expected = []
    for needs in asked:
        fits = all(need <= available for need, available in zip(needs, left, strict=True))
        left = [available - need * fits for need, available in zip(needs, left, strict=True)]
        expected.append(fits)
    demand = np.array(asked, dtype=np.float64).reshape(-1, 2)
    taken, available = in_turn(demand, np.array([cpu, memory], dtype=np.float64))
    assert (taken.tolist(), available.tolist()) == (expected, left)


@given(frontiers, st.data())
def test_the_first_of_the_largest_values_of_each_job(
    drawn: list[list[tuple[int, int, float]]], data: st.DataObject
) -> None:
    candidates, _ = table(drawn)
    size = len(candidates)
    values = np.array(
        data.draw(st.lists(st.sampled_from([-np.inf, 0.0, 1.0, 2.0]), min_size=size, max_size=size)), dtype=np.float64
    )
    expected = [a + int(np.argmax(values[a:b])) for a, b in pairwise(candidates.first.tolist())]
    assert first_of_largest(values, candidates).tolist() == expected
    asked = np.isfinite(values).nonzero()[0]
    found, largest = first_of_largest_among(asked, values[asked], candidates)
    assert found.tolist() == expected
    assert largest.tolist() == values[expected].tolist()


@given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, -0.0, 0.5, 1e300]) | st.floats(0.0, 1.0)))
def test_the_largest_come_first_and_equal_ones_in_order(numbers: list[float]) -> None:
    given_numbers = np.array(numbers, dtype=np.float64)
    assert largest_first(given_numbers).tolist() == np.argsort(-given_numbers, kind="stable").tolist()


@given(st.integers(0, 400), st.integers(1, 4), st.booleans(), st.integers(0, 2**32 - 1))
def test_rows_are_within_as_each_of_their_numbers_is(n: int, resources: int, each_its_own: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    amounts = random.integers(0, 4, (n, resources)).astype(np.float64)
    most = random.integers(1, 5, (n, resources) if each_its_own else resources).astype(np.float64)
    expected = [
        all(a <= b for a, b in zip(*rows, strict=True)) for rows in zip(amounts, most + 0 * amounts, strict=True)
    ]
    assert within(amounts, most).tolist() == expected
