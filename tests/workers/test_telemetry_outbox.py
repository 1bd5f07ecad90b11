from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.workers.telemetry_steps import record

from optimus_contract.telemetry import Sample
from optimus_workers.telemetry.sender import (
    BATCH_SAMPLES,
    FIRST_RETRY_SECONDS,
    MAX_POST_PERIOD_SECONDS,
    MAX_RETRY_SECONDS,
    POST_PERIOD_SECONDS,
    Outbox,
)


def samples(*numbers: int) -> list[Sample]:
    return [record(sequence=number) for number in numbers]


def test_nothing_is_due_when_there_is_nothing() -> None:
    assert Outbox().seconds_until_due(0.0) is None
    assert Outbox().is_empty


def test_first_sample_goes_at_once_and_the_next_after_a_period() -> None:
    outbox = Outbox()
    outbox.put(samples(1))
    assert outbox.seconds_until_due(100.0) == 0.0
    assert outbox.take() == samples(1)
    outbox.put(samples(2))
    outbox.sent(100.1)
    assert outbox.seconds_until_due(100.1) == pytest.approx(POST_PERIOD_SECONDS)


def test_hurry_leaves_out_the_period_until_all_is_sent() -> None:
    outbox = Outbox()
    outbox.put(samples(1))
    outbox.take()
    outbox.put(samples(2))
    outbox.hurry()
    outbox.sent(1.0)
    assert outbox.seconds_until_due(1.0) == 0.0
    outbox.take()
    outbox.sent(2.0)
    outbox.put(samples(3))
    assert outbox.seconds_until_due(2.0) == pytest.approx(POST_PERIOD_SECONDS)


def test_what_has_piled_up_goes_out_without_a_pause() -> None:
    outbox = Outbox()
    outbox.put(samples(*range(2 * BATCH_SAMPLES)))
    assert len(outbox.take()) == BATCH_SAMPLES
    outbox.sent(1.0)
    assert outbox.seconds_until_due(1.0) == 0.0


def test_pause_doubles_while_the_service_is_away_and_is_short_again_afterwards() -> None:
    outbox = Outbox()
    outbox.put(samples(1, 2))
    now, pauses = 0.0, []
    for _ in range(6):
        assert outbox.take() == samples(1, 2)  # the same, in order
        outbox.failed(now)
        pause = outbox.seconds_until_due(now)
        assert pause is not None
        pauses.append(pause)
        now += pause
    assert pauses[:4] == [FIRST_RETRY_SECONDS * 2**n for n in range(4)]
    assert pauses[-1] == MAX_RETRY_SECONDS
    outbox.take()
    outbox.sent(now)
    outbox.put(samples(3))
    outbox.take()
    outbox.failed(now)
    assert outbox.seconds_until_due(now) == FIRST_RETRY_SECONDS


def test_posts_become_rarer_and_larger_while_the_service_is_busy() -> None:
    outbox = Outbox()
    pauses: list[float | None] = []
    now = 0.0
    for number in range(7):
        outbox.put(samples(number))
        assert [sample.sequence for sample in outbox.take()] == list(range(number + 1))  # nothing is lost
        outbox.postponed(now, retry_after=3.0)
        pauses.append(outbox.seconds_until_due(now))
        now += pauses[-1] or 0.0
    assert pauses == [3.0, 6.0, 12.0, 24.0, MAX_POST_PERIOD_SECONDS, MAX_POST_PERIOD_SECONDS, MAX_POST_PERIOD_SECONDS]
    outbox.put(samples(*range(7, BATCH_SAMPLES + 10)))
    assert len(outbox.take()) == BATCH_SAMPLES
    outbox.sent(now)
    outbox.put(samples(*range(BATCH_SAMPLES)))
    assert outbox.seconds_until_due(now) == MAX_POST_PERIOD_SECONDS / 2  # full batches do not hurry either
    for _ in range(5):
        outbox.take()
        outbox.sent(now)
        outbox.put(samples(0))
    assert outbox.seconds_until_due(now) == POST_PERIOD_SECONDS


def test_what_waits_for_its_membership_goes_first_after_a_pause() -> None:
    outbox = Outbox()
    outbox.put(samples(1, 2, 3))
    outbox.take()
    outbox.put(samples(4))
    outbox.hurry()
    outbox.sent_but_for(samples(2, 3), 10.0)
    assert outbox.n_sent == 1
    assert outbox.seconds_until_due(10.0) == FIRST_RETRY_SECONDS
    assert outbox.take() == samples(2, 3, 4)


def test_drops_the_oldest_when_full() -> None:
    outbox = Outbox(capacity=3)
    outbox.put(samples(1, 2))
    assert outbox.take() == samples(1, 2)
    outbox.put(samples(3, 4))
    outbox.failed(0.0)
    assert outbox.n_dropped == 1
    assert outbox.take() == samples(2, 3, 4)


def test_what_was_refused_is_not_sent_again() -> None:
    outbox = Outbox()
    outbox.put(samples(1))
    outbox.take()
    outbox.refused(0.0)
    assert outbox.is_empty
    assert (outbox.n_sent, outbox.n_refused) == (0, 1)


class OutboxMachine(RuleBasedStateMachine):
    """Whatever happens: nothing is lost uncounted, nothing overtakes, nothing grows without bound."""

    capacity = 5

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(capacity=self.capacity)
        self.n_put = 0
        self.out: list[Sample] = []
        self.arrived: list[int] = []

    @rule()
    def put(self) -> None:
        self.outbox.put(samples(self.n_put))
        self.n_put += 1

    @precondition(lambda self: not self.out)
    @rule()
    def take(self) -> None:
        self.out = list(self.outbox.take())

    @precondition(lambda self: self.out)
    @rule()
    def sent(self) -> None:
        self.arrived += [sample.sequence for sample in self.out]
        self.out = []
        self.outbox.sent(0.0)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def sent_but_for(self, data: st.DataObject) -> None:
        n_taken = data.draw(st.integers(0, len(self.out) - 1))
        self.arrived += [sample.sequence for sample in self.out[:n_taken]]
        again, self.out = self.out[n_taken:], []
        self.outbox.sent_but_for(again, 0.0)

    @precondition(lambda self: self.out)
    @rule()
    def failed(self) -> None:
        self.out = []
        self.outbox.failed(0.0)

    @precondition(lambda self: self.out)
    @rule()
    def postponed(self) -> None:
        self.out = []
        self.outbox.postponed(0.0, 1.0)

    @invariant()
    def order_and_count(self) -> None:
        assert self.arrived == sorted(set(self.arrived))
        waiting = self.n_put - len(self.arrived) - self.outbox.n_dropped - len(self.out)
        assert 0 <= waiting <= self.capacity
        assert self.outbox.is_empty == (waiting + len(self.out) == 0)


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(deadline=None, stateful_step_count=30)
