"""Earlier runs of a script with other arguments say less of a new one, by how much such arguments did before."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from optimus_models.arguments import (
    Arguments,
    are_same_but_for,
    covariance,
    named_count,
    naming,
    options_of,
    predicted,
)
from optimus_models.speed.scaling import ScalingCurve, predict_many

Runs = list[tuple[Arguments, float]]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--lr 0.1 --epochs=3 data", {"lr": "0.1", "epochs": "3", "#0": "data"}),
        ("data lr=-1e-3", {"#0": "data", "lr": "-1e-3"}),
        ("--sizes 1 2 -v", {"sizes": "1 2", "v": ""}),
        ("--shift -3", {"shift": "-3"}),
        ("", {}),
    ],
)
def test_values_by_option(words: str, options: dict[str, str]) -> None:
    assert options_of(tuple(words.split())) == options


@pytest.mark.parametrize(
    ("runs", "own", "count"),
    [
        ({"--epochs 30 --lr 0.1": 30.0}, "--epochs 20 --lr 0.1", 20.0),
        ({"30": 30.0, "60": 60.0}, "20", 20.0),
        ({"--epochs 30": 30.0, "--epochs 60": 12.0}, "--epochs 20", None),  # one of them ended before
        ({"--epochs 30": 30.0}, "--lr 0.1", None),
        ({"--epochs 30": 30.0}, "--epochs many", None),
        ({"--epochs 30": 1200.0}, "--epochs 20", None),
        ({"--epochs 30 --batch 30": 30.0}, "--epochs 20 --batch 30", None),  # which of them it is, nobody knows
        ({"--epochs 30 --batch 30": 30.0, "--epochs 10 --batch 30": 10.0}, "--epochs 20 --batch 30", 20.0),
        ({"--epochs 30": 30.0}, "--epochs -1", None),
        ({}, "--epochs 20", None),
    ],
)
def test_a_count_that_an_argument_names(runs: dict[str, float], own: str, count: float | None) -> None:
    names = naming([(tuple(words.split()), made) for words, made in runs.items()])
    assert named_count(tuple(own.split()), names) == count


def test_arguments_may_be_the_same_but_for_what_names_the_count() -> None:
    one, other = ("--epochs", "20", "--lr", "0.1"), ("--lr=0.1", "--epochs=30")
    assert are_same_but_for({"epochs"}, one, other)
    assert not are_same_but_for((), one, other)
    assert not are_same_but_for({"lr"}, one, other)


def sigma_of(own: str, earlier: dict[str, float]) -> float:
    """Of the logarithm, by runs of these figures."""
    runs = [(tuple(words.split()), math.log(figure)) for words, figure in earlier.items()]
    return predicted(tuple(own.split()), runs)[1]


def test_what_was_never_varied_may_do_anything_and_what_did_nothing_does_nothing() -> None:
    rates = {f"--lr {rate} --width 8": 1.0 for rate in (0.1, 0.2, 0.3, 0.4, 0.5)}
    same, rate, width = (
        sigma_of(own, rates) for own in ("--lr 0.1 --width 8", "--lr 9 --width 8", "--lr 0.1 --width 9")
    )
    assert same < 0.25 < rate < 0.6 < 0.9 < width
    slows = rates | {"--lr 0.1 --width 99": 0.02}
    assert sigma_of("--lr 0.1 --width 9", slows) > width, "it has shown that it does much"


def runs_of_a_script(seed: int) -> Runs:
    """Logarithms of speeds of one script: some options matter, and some do not."""
    chance = random.Random(seed)
    scales = [chance.choice((0.0, 0.5, 1.0)) for _ in range(3)]
    effects = [[chance.gauss(0.0, scale) for _ in range(3)] for scale in scales]
    runs = [
        (tuple(f"--{'abc'[place]}={value}" for place, value in enumerate(values)),
         sum(effects[place][value] for place, value in enumerate(values)) + chance.gauss(0.0, 0.1))
        for values in itertools.product(range(3), repeat=3)
    ]  # fmt: skip
    chance.shuffle(runs)
    return runs


def curve_of(own: Arguments, earlier: Runs) -> ScalingCurve:
    others = [([1], [math.exp(value)]) for _, value in earlier]
    return ScalingCurve.fit([], [], others=others, arguments=covariance(own, earlier))


def test_intervals_hold_arguments_that_were_left_out() -> None:
    """Each value of each option is left out in turn: eight in ten of its runs are within the interval of the others."""
    held: list[bool] = []
    without: list[bool] = []
    for seed, place in itertools.product(range(12), range(3)):
        runs = runs_of_a_script(seed)
        for value in range(3):
            earlier = [run for run in runs if not run[0][place].endswith(f"={value}")][:8]
            for own, speed in [run for run in runs if run[0][place].endswith(f"={value}")][:3]:
                for found, curve in (
                    (held, curve_of(own, earlier)),
                    (without, ScalingCurve.fit([], [], others=[([1], [math.exp(each)]) for _, each in earlier])),
                ):
                    (low,), (high,) = curve.predict_interval([1], [0])
                    found.append(low <= math.exp(speed) <= high)
    assert 0.75 < float(np.mean(held)) < 0.97
    assert float(np.mean(held)) > float(np.mean(without))


def test_equal_arguments_come_first_and_what_is_measured_decides() -> None:
    slow: Arguments = ("--sleep", "25")
    earlier: Runs = [(("--sleep", "1"), math.log(1.0 + 0.01 * run)) for run in range(7)]
    earlier.append((slow, math.log(0.04)))
    curve = curve_of(slow, earlier)
    (low,), (high,) = curve.predict_interval([1], [0])
    assert 0.025 < low < 0.04 < high < 0.06
    assert predict_many([curve], np.array([0]), np.array([1.0])) == pytest.approx(curve.predict([1], [0]))
    others = [([1], [math.exp(value)]) for _, value in earlier]
    own = ("--sleep", "9")
    measured = ScalingCurve.fit([1], [0.11], weights=[0.1], others=others, arguments=covariance(own, earlier))
    assert measured.predict([1], [0])[0] == pytest.approx(0.11, rel=0.1)
