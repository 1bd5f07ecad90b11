"""How alike runs of one script are by their arguments: a file name is not the same work.

The logarithm of a figure (a speed, a number of steps) is a mean over the script plus an effect of the value of each
option; runs are the more alike, the more options they have in common. How large the effects of an option are is
learned from runs that differ in it alone; nothing is known of an option that was never varied.

References: Rasmussen and Williams, Gaussian Processes for Machine Learning, MIT Press 2006, section 2.7 (fixed basis
functions with a Gaussian prior); Searle, Casella and McCulloch, Variance Components, Wiley 1992.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from optimus_models.history import FloatArray

UNSEEN_VARIANCE, UNSEEN_COUNT = 0.5, 1.0
"""Believed variance of the effects of an option, and how many measured values' worth that belief is: two runs that
differ in an option that was never varied differ by a factor of 3.6 at most, with 80 % probability."""

_MEAN_VARIANCE, _RUN_VARIANCE = 9.0, 0.15**2
"""Of the mean of a script (unknown), and of runs with the same arguments; as in `optimus_models.speed.scaling`."""

_WHOLE = 0.5
"""A count is of whole steps or epochs."""

Arguments = tuple[str, ...]
"""The words of a command after its script."""


def covariance(own: Arguments, earlier: Sequence[tuple[Arguments, float]]) -> FloatArray:
    """(n + 1, n + 1) covariance of what arguments do to the logarithm of a figure: of a new run and n `earlier` ones.

    `earlier`: arguments of each and the logarithm of its figure.
    """
    runs = [options_of(own), *(options_of(arguments) for arguments, _ in earlier)]
    names = sorted({name for run in runs for name in run})
    values = [tuple(run.get(name) for name in names) for run in runs]
    logs = [value for _, value in earlier]
    found = np.zeros((len(runs), len(runs)))
    for place in range(len(names)):
        column = [run[place] for run in values]
        if len(set(column)) > 1:  # what all have in common is the mean of the script
            is_same = np.array([[one == other for other in column] for one in column])
            found += _variance(values[1:], logs, place) * is_same
    return found


def predicted(own: Arguments, earlier: Sequence[tuple[Arguments, float]]) -> tuple[float, float]:
    """Mean and sigma of the logarithm of a run's figure, by `earlier` ones (at least one)."""
    effects, logs = covariance(own, earlier), np.array([value for _, value in earlier])
    among = effects + _MEAN_VARIANCE
    weights = np.linalg.solve(among[1:, 1:] + _RUN_VARIANCE * np.eye(len(logs)), among[0, 1:])
    middle = float(logs.mean())
    variance = float(among[0, 0] - weights @ among[0, 1:]) + _RUN_VARIANCE
    return middle + float(weights @ (logs - middle)), math.sqrt(max(variance, 0.0))


def naming(counts: Sequence[tuple[Arguments, float]]) -> frozenset[str]:
    """Options that name how many steps or epochs each of these runs (at least one) made: `--epochs 20`.

    `counts`: arguments of each, and how many.
    """
    runs = [(options_of(arguments), count) for arguments, count in counts]
    return frozenset(
        name for name in (runs[0][0] if runs else ()) if all(_names(run.get(name), count) for run, count in runs)
    )


def named_count(arguments: Arguments, names: Collection[str]) -> float | None:
    """How many steps or epochs a run with these arguments makes, by options that name it (`naming`); None: they are not
    among them, or do not agree."""
    options = options_of(arguments)
    found = {_number(options.get(name)) for name in names}
    return found.pop() if len(found) == 1 else None


def are_same_but_for(names: Collection[str], arguments: Arguments, others: Arguments) -> bool:
    """Whether two runs have the same arguments, these options aside."""
    one, other = (
        {name: value for name, value in options_of(each).items() if name not in names} for each in (arguments, others)
    )
    return one == other


def _names(value: str | None, count: float) -> bool:
    number = _number(value)
    return number is not None and abs(number - count) < _WHOLE


def _number(word: str | None) -> float | None:
    """Of a number above 0."""
    number = float(word) if word is not None and _is_number(word) else 0.0
    return number if 0.0 < number < math.inf else None


def _variance(values: Sequence[tuple[str | None, ...]], logs: Sequence[float], place: int) -> float:
    """Of the effects of an option, by the runs that agree in all others."""
    alike: defaultdict[tuple[str | None, ...], defaultdict[str | None, list[float]]]
    alike = defaultdict(lambda: defaultdict(list))
    for run, value in zip(values, logs, strict=True):
        alike[run[:place] + run[place + 1 :]][run[place]].append(value)
    squares, count = UNSEEN_COUNT * UNSEEN_VARIANCE, UNSEEN_COUNT
    for by_value in alike.values():
        means = [float(np.mean(each)) for each in by_value.values()]
        squares += len(means) * float(np.var(means))
        count += len(means) - 1
    return squares / count


def options_of(arguments: Arguments) -> dict[str, str]:
    """Values by option: `--lr 0.1`, `--lr=0.1` and `lr=0.1` alike; words without an option by their place."""
    found, name, n_places = dict[str, str](), None, 0
    for word in arguments:
        is_option = word.startswith("-") and not _is_number(word)
        if is_option or (name is None and "=" in word):
            name, has_value, value = word.lstrip("-").partition("=")
            found[name] = value
            name = None if has_value else name
        elif name is not None:
            found[name] = f"{found[name]} {word}".lstrip()
        else:
            found[f"#{n_places}"] = word
            n_places += 1
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
