"""What the coordinator reports to a service whose database may have been restored."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from tests.workers.coordinator.harness import PROFILE

from optimus_contract.membership import MembershipReport
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

    def report_membership(self, report: MembershipReport) -> None:
        self._take(report.epoch)

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


def test_a_membership_that_the_service_has_forgotten_is_reported_again() -> None:
    client = Client()
    reporter = make_reporter(client)
    reporter.profile(replace(PROFILE, n_parameters=77))
    for epoch in (1, 2, 3):
        reporter.membership(formed(epoch))
    assert reporter.drain(PATIENCE_SECONDS)
    reporter.service_knows(3)
    reporter.service_knows(4)
    assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken == [77, 1, 2, 3]
    for late in (1, 3, 2):  # each asked for before the service had taken the newest
        reporter.service_knows(late)
    assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken == [77, 1, 2, 3]
    reporter.service_knows(1)
    assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken == [77, 1, 2, 3, 77, 3]
    for _ in range(2):
        reporter.service_knows(0)
    assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken[6:] == [77, 3], "whenever it is forgotten"


def test_what_the_service_has_not_been_told_of_is_not_forgotten() -> None:
    client = Client()
    client.away.set()
    reporter = make_reporter(client)
    reporter.membership(formed(1))
    for _ in range(3):
        reporter.service_knows(0)
    client.away.clear()
    assert reporter.drain(PATIENCE_SECONDS)
    assert client.taken == [1]
