"""How predictions turned out: how often intervals held what came, and by how much they erred. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from optimus_contract import answers
from optimus_service.observe.promises import KINDS, PARTS, Verdict, verdicts
from optimus_service.store.records import KeptPromise

MAX_TASKS = 50
"""Tasks that are shown by themselves."""


def scorecard(kept: Iterable[KeptPromise]) -> answers.Scorecard:
    """Of promises whose jobs have succeeded."""
    found = list(verdicts(kept))
    by_task = Counter(verdict.task for verdict in found)
    return answers.Scorecard(
        scores=scores(found),
        tasks=[
            answers.TaskScore(task=task, scores=scores([each for each in found if each.task == task]))
            for task, _ in sorted(by_task.items(), key=lambda item: (-item[1], item[0]))[:MAX_TASKS]
        ],
    )


def scores(found: Sequence[Verdict]) -> list[answers.PromiseScore]:
    """One line for each kind and part of life of which there is any."""
    return [
        _score(those, part)
        for kind in KINDS
        for part in PARTS
        if (those := [each for each in found if (each.kind, each.part) == (kind, part)])
    ]


def _score(found: Sequence[Verdict], part: str) -> answers.PromiseScore:
    return answers.PromiseScore(
        kind=found[0].kind,
        part=part,
        promises=len(found),
        held=sum(each.held for each in found) / len(found),
        median_error_percent=100.0 * median(abs(each.predicted.mean / each.true - 1.0) for each in found),
    )
