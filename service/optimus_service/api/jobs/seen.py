"""Answers for callers who may not read all projects: what they say of jobs of others is left out. Pure.

What ended jobs taught goes into the predictions of all; how many there were is told to those only who may read them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from optimus_contract import answers
from optimus_service.api.access.callers import Caller
from optimus_service.insight.predictions.dry_run import Altered, Previewed


def previewed(found: Previewed, readable: Collection[str], caller: Caller) -> Previewed:
    """What a dry run found; `readable`: ids of active jobs that the caller may read."""
    if caller.projects is None:
        return found
    effects = tuple(effect for effect in found.effects if effect.job_id in readable)
    return replace(found, effects=effects, n_similar=0, forecast=found.forecast._replace(speed_from=None))


def altered(found: Altered, readable: Collection[str], caller: Caller) -> Altered:
    """What a change of what is there was found to do; `readable` as of `previewed`."""
    if caller.projects is None:
        return found
    return replace(found, effects=tuple(effect for effect in found.effects if effect.job_id in readable))


def decision(body: answers.Decision, caller: Caller) -> answers.Decision:
    """What a round decided."""
    if caller.projects is None:
        return body
    return replace(body, forecast=replace(body.forecast, finished_runs=0, finished_runs_share=None, speed_from=None))


def predictions(body: answers.Predictions, caller: Caller) -> answers.Predictions:
    """What is believed of a job."""
    if caller.projects is None:
        return body
    return replace(body, learned=answers.Learned(finished_runs=0, share=0.0, speeds_from=None))
