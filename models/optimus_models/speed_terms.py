"""The terms that a training step's time is made of, as functions of workers and parameter servers.

Synchronous (paper, Eq. 4):   1/f = θ0·M/w + θ1 + θ2·w/p + θ3·w + θ4·p
Asynchronous (paper, Eq. 3):  w/f = θ0 + θ1·w/p + θ2·w + θ3·p

f is in steps per second, w workers, p servers, M the global batch size. With flat sharding and full-duplex links each
worker still pushes the whole vector through its own link, so more servers than workers do not help: the `flat` form
has max(w/p, 1) in place of w/p.

References: Peng et al., "Optimus", EuroSys 2018, section 3.2.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from optimus_models.history import FloatArray

Mode = Literal["sync", "async"]
CommunicationTerm = Literal["paper", "flat"]

PRIOR_SHARES: dict[Mode, FloatArray] = {
    "sync": np.array([0.75, 0.10, 0.12, 0.015, 0.015]),
    "async": np.array([0.85, 0.12, 0.015, 0.015]),
}
"""Which part of the step time each term is believed to make up before anything else is known.

Order as the coefficients. A step that somebody bothers to distribute is mostly computing (75 %), with a part that does
not shrink with more workers (10 %); transfers of a well-connected cluster take about as much (12 %). The per-task
overheads are what finally ends scaling: 1.5 % each puts the end at about 7 times the measured number of workers, a
little below the 8 to 16 of the paper's figures 4 and 9, so that exploring starts carefully. Asynchronous steps do not
share the batch: computing and the constant part are one term.
"""


def terms(
    workers: NDArray[np.float64], servers: FloatArray, mode: Mode, communication: CommunicationTerm, batch: float
) -> FloatArray:
    """(n, n_terms): each row's terms of the step time of one worker, for `workers` (n,) and `servers` (n,)."""
    w, p = workers, servers
    transfer = w / p if communication == "paper" else np.maximum(w / p, 1.0)
    if mode == "async":
        return np.column_stack([np.ones_like(w), transfer, w, p])
    return np.column_stack([batch / w, np.ones_like(w), transfer, w, p])


def step_seconds(workers: FloatArray, speeds: FloatArray, mode: Mode) -> FloatArray:
    """The step time that `terms` add up to: 1/f (sync), w/f (async: the job's speed is that of w workers)."""
    return workers / speeds if mode == "async" else 1.0 / speeds


def speed(workers: FloatArray, seconds: FloatArray, mode: Mode) -> FloatArray:
    """The inverse of `step_seconds`: steps per second."""
    return workers / seconds if mode == "async" else 1.0 / seconds
