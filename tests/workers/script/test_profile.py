"""What a script's worker tells the service of what it has learned."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

from tests.client.agent import wait_until

from optimus_contract.readings.progress import Learned
from optimus_contract.result import JobProfile
from optimus_workers.script.learning import Learning


class SlowService:
    """Takes a profile that was sent first only once another one has been made."""

    def __init__(self) -> None:
        self.taken: list[JobProfile] = []
        self.is_second_made = threading.Event()

    def put_profile(self, profile: JobProfile) -> None:
        if profile.total_steps is None:
            assert self.is_second_made.wait(30.0)
        self.taken.append(profile)


def test_the_newest_profile_arrives_last() -> None:
    """One with nothing in it arrived after the one that told all steps, and these were not known for good."""
    service, run = SlowService(), SimpleNamespace(progress=SimpleNamespace(learned=Learned(), step=1), end=None)
    worker = Learning.__new__(Learning)
    values: dict[str, object] = {
        "_sent": None,
        "_told": None,
        "_telling": threading.Lock(),
        "_learned_at": -1e9,
        "_had_total": False,
    }
    values |= {"_spec": SimpleNamespace(global_batch_size=None, scaling=None), "_client": service}
    for name, value in (values | {"_remember": lambda *_: None, "_remembered_step": lambda: 0}).items():
        setattr(worker, name, value)
    worker._report_learned(run)  # type: ignore[arg-type]
    run.progress.learned = replace(run.progress.learned, total_steps=6)
    worker._report_learned(run)  # type: ignore[arg-type]
    service.is_second_made.set()
    wait_until(lambda: bool(service.taken) and service.taken[-1].total_steps == 6 and not worker._telling.locked())
    wait_until(lambda: not any(each.name == "profile" for each in threading.enumerate()))
    assert service.taken[-1].total_steps == 6
