"""What the coordinator reports to a service whose database may have been restored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.workers.coordinator.harness import PROFILE

from optimus_contract.membership import MembershipReport, WantedMembership
from optimus_contract.result import JobProfile
from optimus_workers.coordinator.journal import Formed
from optimus_workers.coordinator.service_calls import Reporter
from optimus_workers.errors import ServiceAway

PATIENCE_SECONDS = 60.0


class Client:
    """Takes what is reported; away as long as `away` is set."""

    def __init__(self) -> None:
        self.away = threading.Event()
        self.taken: list[Any] = []
        self.known = 0
        """The newest membership that its answers tell."""
        self.on_asked: Callable[[], None] = lambda: None

    def wanted(self, _after: int, _timeout_seconds: float) -> WantedMembership:
        self.on_asked()
        return WantedMembership(generation=1, directive="run", tasks=[], membership_epoch=self.known)

    def report_membership(self, report: MembershipReport) -> None:
        self._take(report.epoch)
        self.known = max(self.known, report.epoch)

    def put_profile(self, profile: JobProfile) -> None:
        self._take(profile.n_parameters)

    def _take(self, what: Any) -> None:
        if self.away.is_set():
            raise ServiceAway("not now")
        self.taken.append(what)


def formed(epoch: int) -> Formed:
    return Formed(epoch, epoch, 1000.0, 10 * epoch, ("worker-0",), (), "rescale")


def make_reporter(client: Client) -> Reporter:
    return Reporter(client, lambda _epoch: None, lambda _reason: None)  # type: ignore[arg-type]


def test_a_membership_that_the_service_has_forgotten_is_reported_again_at_once() -> None:
    client = Client()
    reporter = make_reporter(client)
    reporter.profile(replace(PROFILE, n_parameters=77))
    for epoch in (1, 2, 3):
        reporter.membership(formed(epoch))
    assert reporter.drain(PATIENCE_SECONDS)
    for client.known in (3, 4):
        reporter.wanted(0, 0.0)
    assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken == [77, 1, 2, 3]
    for _ in range(2):  # whenever it is forgotten
        client.known = 1
        reporter.wanted(0, 0.0)
        assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken == [77, 1, 2, 3, 77, 3, 77, 3]


def test_an_answer_that_was_on_its_way_while_the_membership_was_taken_shows_nothing() -> None:
    client = Client()
    reporter = make_reporter(client)
    reporter.membership(formed(1))
    assert reporter.drain(PATIENCE_SECONDS)

    def take_next() -> None:
        client.known = 1
        reporter.membership(formed(2))
        assert reporter.drain(PATIENCE_SECONDS)
        client.known = 1

    client.on_asked = take_next
    reporter.wanted(0, 0.0)
    assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken == [1, 2]


def test_two_answers_that_show_the_same_report_it_once() -> None:
    client = Client()
    reporter = make_reporter(client)
    reporter.membership(formed(2))
    assert reporter.drain(PATIENCE_SECONDS)

    def ask_beside() -> None:
        client.on_asked = lambda: None
        client.known = 1
        reporter.wanted(0, 0.0)
        assert reporter.drain(PATIENCE_SECONDS)
        client.known = 1

    client.on_asked = ask_beside
    reporter.wanted(0, 0.0)
    assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken == [2, 2]


def test_what_the_service_has_not_been_told_of_is_not_forgotten() -> None:
    client = Client()
    client.away.set()
    reporter = make_reporter(client)
    reporter.membership(formed(1))
    for _ in range(3):
        reporter.wanted(0, 0.0)
    client.away.clear()
    assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken == [1]
