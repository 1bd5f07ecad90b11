"""What a script's worker tells the service of what it has learned, and of planned learning rates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.client.agent import wait_until

from optimus_contract.readings.progress import Learned
from optimus_contract.result import JobProfile, PlannedRates
from optimus_workers.errors import ServiceAway
from optimus_workers.script.learning import Learning
from optimus_workers.telemetry.newest import Newest


class SlowService:
    """Takes what was sent first only once `is_second_made`."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.is_second_made = threading.Event()
        self._n_asked = 0

    def take(self, value: JobProfile | PlannedRates) -> None:
        self._n_asked += 1
        if self._n_asked == 1:
            assert self.is_second_made.wait(30.0)
        self.taken.append(value)

    put_profile = put_planned_rates = take


def learning(service: SlowService) -> Learning:
    """A worker's part that learns, without all else."""
    worker = Learning.__new__(Learning)
    values: dict[str, object] = {
        "_learned_at": -1e9,
        "_had_total": False,
        "_spec": SimpleNamespace(global_batch_size=None, scaling=None),
        "_client": service,
        "_profiles": Newest(service.put_profile, "what was learned"),
        "_plans": Newest(service.put_planned_rates, "the planned learning rates"),
        "_remember": lambda *_: None,
        "_remembered_step": lambda: 0,
    }
    for name, value in values.items():
        setattr(worker, name, value)
    return worker


@pytest.fixture
def all_told() -> Callable[[], None]:
    """Waits until every thread that was started since has ended."""
    before = set(threading.enumerate())
    return lambda: wait_until(lambda: set(threading.enumerate()) <= before)


def test_the_newest_profile_arrives_last(all_told: Callable[[], None]) -> None:
    """One with nothing in it arrived after the one that told all steps, and these were not known for good."""
    service, run = SlowService(), SimpleNamespace(progress=SimpleNamespace(learned=Learned(), step=1), end=None)
    worker = learning(service)
    worker._report_learned(run)  # type: ignore[arg-type]
    run.progress.learned = replace(run.progress.learned, total_steps=6)
    worker._report_learned(run)  # type: ignore[arg-type]
    service.is_second_made.set()
    all_told()
    assert service.taken[-1].total_steps == 6


@pytest.mark.parametrize(("step", "told"), [(0, 40), (60, None)])
def test_where_a_script_began_is_told_in_steps_of_the_base_batch(
    all_told: Callable[[], None], step: int, told: int | None
) -> None:
    """With weak scaling each step of its first two workers counts as two; later ones count otherwise."""
    service = SlowService()
    service.is_second_made.set()
    worker = learning(service)
    worker._spec.scaling = "weak"  # type: ignore[misc]
    progress = SimpleNamespace(learned=Learned(began_at=20), step=22, has_old_total=False)
    order, batch = SimpleNamespace(step=step), SimpleNamespace(reported_step=lambda each: 2 * each)
    run = SimpleNamespace(progress=progress, end=None, is_formed=True, order=order, batch=batch)
    worker._report_learned(run)  # type: ignore[arg-type]
    all_told()
    assert service.taken[-1].began_at_step == told


def test_the_newest_planned_learning_rates_arrive_last(all_told: Callable[[], None]) -> None:
    plans = iter([[(0, 0.4), (9, 0.4)], [(0, 0.4), (9, 0.04)]])
    progress = SimpleNamespace(take_planned_rates=lambda: next(plans))
    run, service = SimpleNamespace(progress=progress, is_formed=True, batch=None), SlowService()
    worker = learning(service)
    worker._report_planned_rates(run)  # type: ignore[arg-type]
    worker._report_planned_rates(run)  # type: ignore[arg-type]
    service.is_second_made.set()
    all_told()
    assert service.taken[-1] == PlannedRates(steps=[0, 9], rates=[0.4, 0.04])


def test_the_newest_value_can_be_waited_for() -> None:
    taken, may_go = list[int](), threading.Event()

    def put(value: int) -> None:
        assert may_go.wait(60.0)
        taken.append(value)

    newest = Newest(put, "a number")
    newest.wait(0.0)  # nothing is told
    newest.tell(1)
    newest.tell(2)
    newest.wait(0.0)
    assert taken == []
    may_go.set()
    newest.wait(60.0)
    assert taken[-1] == 2


def test_what_the_service_did_not_take_is_told_again(all_told: Callable[[], None]) -> None:
    taken, is_away = list[int](), True

    def put(value: int) -> None:
        if is_away:
            raise ServiceAway("it is away")
        taken.append(value)

    newest = Newest(put, "a number")
    newest.tell(1)
    all_told()
    is_away = False
    newest.tell(1)
    newest.tell(1)
    all_told()
    assert taken == [1]


def test_what_a_service_may_have_forgotten_is_told_again(all_told: Callable[[], None]) -> None:
    """It was away, and its database may be that of a backup from before the script said how many steps it has."""
    service, run = SlowService(), SimpleNamespace(progress=SimpleNamespace(learned=Learned(), step=1), end=None)
    service.is_second_made.set()
    worker = learning(service)
    worker._tell_again()
    all_told()
    assert service.taken == [], "there is nothing to tell yet"
    run.progress.learned = replace(run.progress.learned, total_steps=6)
    worker._report_learned(run)  # type: ignore[arg-type]
    all_told()
    worker._tell_again()
    all_told()
    assert [told.total_steps for told in service.taken] == [6, 6]
