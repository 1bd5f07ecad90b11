"""ElasticFlow as in its published simulations (`--like-elasticflow`): what differs from the policy `elasticflow`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from optimus_scheduler.allocate.baselines.elasticflow import ElasticFlowPolicy
from optimus_scheduler.allocate.filling import SizedJob, planned
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.model import Resources
from optimus_scheduler.settings import Settings

PERIOD_SECONDS = 60.0
"""Rounds are so far apart at least; they come with arrivals, ends and changes that were planned."""
_LARGE_GPUS = 256
"""Clusters from so many GPUs on are slower to change."""
_ROUNDS_OF_A_PROCESS = 60
"""All training processes start anew after so many rounds."""


class PublishedElasticFlow(ElasticFlowPolicy):
    """The policy with the artifact's admission; used for one replay, which asks for `seconds`.

    Jobs that arrive together are admitted or declined together, and none is admitted as long as one that was admitted
    is late. A declined job never runs: the replay takes it out. What is left goes first to the job whose plan then
    takes most GPU time; the paper says least.

    References: https://github.com/pkusys/ElasticFlow, `scheduler.py`, `ef_sim_jobs_access_control`.
    """

    dearest_first = True

    def __init__(self) -> None:
        self.seconds = math.inf
        """Until the last plan changes a size."""
        self._rounds = 0

    def allocate(self, inputs: AllocationInput, settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job."""
        found = self.schedule(inputs, settings)
        self.seconds, self._rounds = found.seconds, self._rounds + 1
        return found.grants

    def admitted(self, jobs: Sequence[SizedJob], capacity: Resources) -> list[SizedJob]:
        """All of them, or only those that were admitted before."""
        return [job for job in jobs if job.is_promised] if planned(jobs, capacity).late else list(jobs)

    def pause(self, workers: int, gpus: int, *, changed: bool) -> float:
        """Seconds that a job stands still after a round, with so many workers on a cluster of so many GPUs (its
        `utils.estimate_overhead`; what was on the same GPUs before counts as unchanged, whichever job it was)."""
        base = 7.0 if gpus >= _LARGE_GPUS else 2.0
        anew = self._rounds % _ROUNDS_OF_A_PROCESS == 0
        if not (changed or anew):
            return base
        start = (47.0 if gpus >= _LARGE_GPUS else 27.0) if anew else 0.0
        return base + start + 2.0 * (math.log2(workers) + 1.0)
