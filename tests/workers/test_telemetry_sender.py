from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from tests.workers.telemetry_steps import record

from optimus_contract.telemetry import Sample
from optimus_workers.errors import ServiceAway, ServiceRefused
from optimus_workers.telemetry import Telemetry
from optimus_workers.telemetry.sender import Outbox

PATIENCE_SECONDS = 60.0


class Service:
    """Takes samples in, unless `trouble` is raised instead; `gate` holds every post back while it is closed."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.attempts = 0
        self.trouble: Exception | None = None
        self.known_epoch = 1
        """Samples of later memberships wait."""
        self.gate = threading.Event()
        self.gate.set()
        self._changed = threading.Condition()

    def post(self, samples: list[Sample], /) -> list[Sample]:
        with self._changed:
            self.attempts += 1
            self._changed.notify_all()
        assert self.gate.wait(PATIENCE_SECONDS)
        with self._changed:
            if self.trouble is not None:
                raise self.trouble
            self.samples += [sample for sample in samples if sample.membership_epoch <= self.known_epoch]
            self._changed.notify_all()
            return [sample for sample in samples if sample.membership_epoch > self.known_epoch]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_SECONDS)


class Clock:
    """Time that passes by itself only when the thread asks: every look is `tick` seconds later."""

    def __init__(self, tick: float) -> None:
        self._now = 0.0
        self._tick = tick

    def __call__(self) -> float:
        self._now += self._tick
        return self._now


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def telemetry(service: Service) -> Iterator[Telemetry]:
    client = Telemetry(service.post, clock=Clock(tick=100.0))  # no pause is longer than this
    yield client
    service.gate.set()
    service.trouble = None
    client.close(PATIENCE_SECONDS)


def test_long_steps_arrive_by_themselves(service: Service, telemetry: Telemetry) -> None:
    for step in range(1, 6):
        telemetry.record(record(step, seconds=1.0))
    service.wait_until(lambda: len(service.samples) == 5)
    assert [sample.step for sample in service.samples] == [1, 2, 3, 4, 5]


def test_flush_sends_the_unfinished_sample_too(service: Service, telemetry: Telemetry) -> None:
    telemetry.record(record(1, seconds=0.01))
    assert telemetry.flush(PATIENCE_SECONDS)
    assert [sample.n_steps for sample in service.samples] == [1]


def test_samples_of_a_membership_that_the_service_does_not_know_wait_until_it_does(
    service: Service, telemetry: Telemetry
) -> None:
    """As after the restore of an older backup, until the coordinator has reported the membership again."""
    for step in range(1, 6):
        telemetry.record(record(step, seconds=1.0, membership_epoch=1 + step // 3))
    attempts = service.attempts
    service.wait_until(lambda: service.attempts > attempts + 3)
    assert {sample.membership_epoch for sample in service.samples} <= {1}
    assert not telemetry.flush(0.0)
    service.known_epoch = 2
    assert telemetry.flush(PATIENCE_SECONDS)
    assert [sample.step for sample in service.samples] == [1, 2, 3, 4, 5]


def test_a_task_whose_job_is_over_does_not_stay_for_a_membership_that_nobody_reports(service: Service) -> None:
    telemetry = Telemetry(service.post)
    telemetry.record(record(1, seconds=1.0, membership_epoch=3))
    telemetry.outlast(lambda: False)
    assert not telemetry.close(0.0)
    assert not service.samples


def test_short_steps_arrive_by_themselves_when_none_follows(service: Service, telemetry: Telemetry) -> None:
    """As of a worker that hangs: where it does, its last steps say."""
    telemetry.record(record(1, seconds=0.01))
    service.wait_until(lambda: [sample.step for sample in service.samples] == [1])


def test_flush_of_nothing_is_done_at_once(telemetry: Telemetry, service: Service) -> None:
    assert telemetry.flush(0.0)
    assert service.attempts == 0


def test_recording_does_not_wait_for_the_network(service: Service, telemetry: Telemetry) -> None:
    service.gate.clear()
    telemetry.record(record(1, seconds=1.0))
    service.wait_until(lambda: service.attempts == 1)
    for step in range(2, 1000):
        telemetry.record(record(step, seconds=1.0))  # would hang here: the post is stuck until the gate opens
    assert not telemetry.flush(0.0)
    service.gate.set()
    assert telemetry.flush(PATIENCE_SECONDS)
    assert len(service.samples) == 999


def test_samples_survive_a_service_that_is_away(
    service: Service, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    service.trouble = ServiceAway("connection refused")
    telemetry.record(record(1, seconds=1.0))
    service.wait_until(lambda: service.attempts >= 3)
    service.trouble = None
    assert telemetry.flush(PATIENCE_SECONDS)
    assert [sample.step for sample in service.samples] == [1]
    assert telemetry.n_dropped == 0
    assert caplog.text.count("telemetry waits") == 1  # said once, however often it was tried


def test_who_has_more_to_tell_hears_when_the_service_is_back(service: Service) -> None:
    """Once, not at each post."""
    back = threading.Semaphore(0)
    telemetry = Telemetry(service.post, clock=Clock(tick=100.0), on_back=back.release)
    telemetry.record(record(1, seconds=1.0))
    assert telemetry.flush(PATIENCE_SECONDS)
    service.trouble = ServiceAway("connection refused")
    telemetry.record(record(2, seconds=1.0))
    service.wait_until(lambda: service.attempts >= 3)
    assert not back.acquire(blocking=False)
    service.trouble = None
    assert back.acquire(timeout=PATIENCE_SECONDS)
    telemetry.record(record(3, seconds=1.0))
    assert telemetry.close(PATIENCE_SECONDS)
    assert not back.acquire(blocking=False)


def test_goes_on_after_a_refusal(service: Service, telemetry: Telemetry) -> None:
    service.trouble = ServiceRefused(422, "rank")
    telemetry.record(record(1, seconds=1.0))
    assert telemetry.flush(PATIENCE_SECONDS)
    service.trouble = None
    telemetry.record(record(2, seconds=1.0))
    assert telemetry.flush(PATIENCE_SECONDS)
    assert [sample.step for sample in service.samples] == [2]
    assert telemetry.n_dropped == 1


def test_a_refused_figure_costs_no_sample(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Sample] = []

    def post(samples: list[Sample], /) -> list[Sample]:
        for sample in samples:
            if (sample.learning_rate or 0.0) > 1e9:
                raise ServiceRefused(422, "columns.learning_rate.0: must be less than or equal to 1000000000")
        taken.extend(samples)
        return []

    telemetry = Telemetry(post)
    for step, rate in enumerate([1e20, 1e20, 0.1], start=1):
        telemetry.record(record(step, seconds=1.0, learning_rate=rate))
        assert telemetry.flush(PATIENCE_SECONDS)
    assert telemetry.close(PATIENCE_SECONDS)
    assert [(sample.step, sample.learning_rate) for sample in taken] == [(1, None), (2, None), (3, 0.1)]
    assert telemetry.n_dropped == 0
    assert caplog.text.count("a figure is refused") == 1


def test_counts_what_did_not_fit(service: Service) -> None:
    service.gate.clear()
    telemetry = Telemetry(service.post, outbox=Outbox(capacity=2))
    telemetry.record(record(1, seconds=1.0))
    service.wait_until(lambda: service.attempts == 1)
    for step in range(2, 7):
        telemetry.record(record(step, seconds=1.0))
    service.gate.set()
    assert telemetry.close(PATIENCE_SECONDS)
    assert [sample.step for sample in service.samples] == [1, 5, 6]
    assert telemetry.n_dropped == 3


def test_close_does_not_wait_longer_than_asked(service: Service, telemetry: Telemetry) -> None:
    service.trouble = ServiceAway("gone")
    telemetry.record(record(1, seconds=1.0))
    assert not telemetry.close(0.0)
    assert not telemetry.flush(PATIENCE_SECONDS)  # at once: nobody sends any more


def test_records_after_closing_are_ignored(service: Service, telemetry: Telemetry) -> None:
    assert telemetry.close(PATIENCE_SECONDS)
    telemetry.record(record(1, seconds=1.0))
    assert telemetry.flush(PATIENCE_SECONDS)
    assert service.samples == []


def test_a_task_that_is_done_outlasts_a_service_that_is_away(service: Service) -> None:
    telemetry = Telemetry(service.post)
    service.trouble = ServiceAway("down")
    telemetry.record(record(1))
    waiting = threading.Thread(target=telemetry.outlast, args=(lambda: False,))
    waiting.start()
    service.wait_until(lambda: service.attempts >= 2)
    assert not service.samples
    service.trouble = None
    waiting.join(PATIENCE_SECONDS)
    telemetry.close(0.0)
    assert [sample.step for sample in service.samples] == [1]


def test_it_stays_no_longer_than_it_may(service: Service) -> None:
    telemetry = Telemetry(service.post)
    service.trouble = ServiceAway("down")
    telemetry.record(record(1))
    telemetry.outlast(lambda: service.attempts >= 2)
    assert not telemetry.close(0.0)
