"""A state machine against a model: whatever is posted and reported in whatever order, each sample counts once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.service.store.store_builders import a_membership, a_sample, add_samples, samples_of

from optimus_contract.telemetry import Sample
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.repository import Repository

STEPS = st.integers(0, 60)
SAMPLES = st.builds(
    a_sample,
    membership_epoch=st.integers(1, 5),
    rank=st.integers(0, 2),
    sequence=st.integers(0, 3),
    workers=st.just(3),
    step=STEPS,
)


class Accounting(RuleBasedStateMachine):
    """Posts and reports; the model keeps what must have been counted."""

    repository: Repository
    _numbers = iter(range(10**9))

    @initialize()
    def submit(self) -> None:
        self.job_id = f"job-{next(self._numbers)}"
        self.repository.jobs.create(self.job_id, {"name": "a", "project": "b"}, "nonce", None, "hash", 0.0)
        self.began: dict[int, int] = {}
        """Step at which each reported epoch began."""
        self.counted: dict[tuple[int, int, int], Sample] = {}
        self.last_step = 0

    def expected(self, sample: Sample) -> str | None:
        epoch = sample.membership_epoch
        if epoch > max(self.began, default=0) + 1:
            return "unknown_membership"
        if epoch in self.began and sample.rank >= 2:
            return "old_membership"
        if any(later > epoch and sample.step > step for later, step in self.began.items()):
            return "old_membership"
        if (epoch, sample.rank, sample.sequence) in self.counted:
            return "duplicate"
        return None

    @rule(post=st.lists(SAMPLES, min_size=1, max_size=6))
    def post(self, post: list[Sample]) -> None:
        answer = add_samples(self.repository, self.job_id, post, 1.0)
        why: dict[int, str] = {}
        for index, sample in enumerate(post):
            ignored = self.expected(sample)
            if ignored is None:
                self.counted[sample.membership_epoch, sample.rank, sample.sequence] = sample
            else:
                why[index] = ignored
        assert {ignored.index: ignored.why for ignored in answer.ignored} == why
        assert answer.accepted == len(post) - len(why)
        assert self.repository.jobs.get(self.job_id).step >= self.last_step

    @rule(epoch=st.integers(1, 5), step=STEPS, lost=st.booleans())
    def report(self, epoch: int, step: int, lost: bool) -> None:
        report = a_membership(self.job_id, epoch, step=step, lost_steps=int(lost))
        assert self.repository.memberships.report(self.job_id, report) == (epoch not in self.began)
        self.began.setdefault(epoch, step)

    @invariant()
    def each_counted_sample_is_stored_once(self) -> None:
        stored = samples_of(self.repository, self.job_id)
        keys = [(sample.membership_epoch, sample.rank, sample.sequence) for sample in stored]
        assert len(keys) == len(set(keys))
        assert set(keys) == set(self.counted)
        job = self.repository.jobs.get(self.job_id)
        assert job.membership_epoch == max(self.began, default=0)
        assert (job.first_step is None) == (not self.counted)
        self.last_step = job.step


@pytest.fixture(scope="module")
def machine_repository(migrated_sqlite: Path) -> Iterator[Repository]:
    """One database for all examples: each has its own job. Of SQLite only, for speed: the rules are the same."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "optimus.db"
        shutil.copy(migrated_sqlite, path)
        repository = Repository(create_engine_from_url(f"sqlite:///{path}"))
        yield repository
        repository.close()


def test_every_sample_counts_once(machine_repository: Repository) -> None:
    machine = type("Machine", (Accounting,), {"repository": machine_repository})
    bounds = settings(max_examples=50, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=bounds)
