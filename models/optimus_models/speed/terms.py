"""The terms that a training step's time is made of, as functions of workers and parameter servers.

Synchronous (paper, Eq. 4):   1/f = θ0·M/w + θ1 + θ2·w/p + θ3·w + θ4·p
Asynchronous (paper, Eq. 3):  w/f = θ0 + θ1·w/p + θ2·w + θ3·p

f is in steps per second, w workers, p servers, M the global batch size. Our own two forms add a term 1/p: a server
applies one combined update a step, which takes the longer the larger its range of the parameters is, however many
workers there are. They differ in what is sent at the same time:

* `shared`: w/p, as in the paper: w workers share the links of p servers;
* `flat`: max(w/p, 1): with flat sharding and full-duplex links each worker still pushes the whole vector through its
  own link, so more servers than workers do not help.

References: Peng et al., "Optimus", EuroSys 2018, section 3.2.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from optimus_models.history import FloatArray

Mode = Literal["sync", "async"]
Terms = Literal["paper", "shared", "flat"]

_PRIOR_SHARES: dict[Mode, FloatArray] = {
    "sync": np.array([0.60, 0.15, 0.18, 0.005, 0.002, 0.05]),
    "async": np.array([0.79, 0.15, 0.005, 0.002, 0.02]),
}
"""Which part of the step time at 1 + 1 each term is believed to make up before anything is known; as coefficients.

A step that somebody bothers to distribute is mostly computing (60 %), with a part that does not shrink with more
workers (15 %); sending takes about as much as that (18 %), updating less (5 %). Overheads per task are small, but they
are what finally ends scaling: a job measured at 1 + 1 is believed to gain up to about 10 workers, and real clusters
stop at 8 to 16 (paper, figures 4 and 9). Larger overheads suit a 1 GbE testbed and mislead on faster networks, where
jobs scale to 128 workers (docs/models.md). Asynchronous steps do not share the batch: computing and the constant part
are one term.
"""


def step_terms(workers: FloatArray, servers: FloatArray, mode: Mode, terms: Terms, batch: float) -> FloatArray:
    """(n, t): what each coefficient is multiplied with, for `workers` (n,) and `servers` (n,)."""
    w, p = workers, servers
    sending = np.maximum(w / p, 1.0) if terms == "flat" else w / p
    columns = [np.ones_like(w), sending, w, p]
    if mode == "sync":
        columns.insert(0, batch / w)
    if terms != "paper":
        columns.append(1.0 / p)
    return np.column_stack(columns)


def prior_shares(mode: Mode, terms: Terms) -> FloatArray:
    """(t,) shares of the step time at 1 + 1, summing to 1."""
    shares = _PRIOR_SHARES[mode]
    shares = shares[:-1] if terms == "paper" else shares
    normalised: FloatArray = shares / shares.sum()
    return normalised


def step_seconds(workers: FloatArray, speeds: FloatArray, mode: Mode) -> FloatArray:
    """The step time that the terms add up to: 1/f (sync), w/f (async: the job's speed is that of w workers)."""
    return workers / speeds if mode == "async" else 1.0 / speeds


def speed(workers: FloatArray, seconds: FloatArray, mode: Mode) -> FloatArray:
    """The inverse of `step_seconds`: steps per second."""
    return workers / seconds if mode == "async" else 1.0 / seconds
