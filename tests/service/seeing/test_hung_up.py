"""Long polls whose client hangs up, on a real connection."""

from __future__ import annotations

import httpx
import pytest
from tests.service.clusters.cluster_harness import wait_until
from tests.service.seeing.live import live_service

from optimus_service.push.long_poll import MAX_WAITERS_OF_JOB


def test_a_client_that_hangs_up_holds_no_place(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A coordinator whose connections break asks again at once, and again."""
    with live_service(tmp_path_factory.mktemp("hung-up"), history_seconds=20) as service:
        repository, polls = service.world.repository, service.services.long_polls
        job = repository.jobs.active()[0]
        token = service.services.job_tokens.issue(job.id, job.token_nonce)
        params = {"after": 2**40, "timeout_seconds": 60}
        with httpx.Client(
            base_url=service.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False
        ) as client:
            for _ in range(2 * MAX_WAITERS_OF_JOB):
                with pytest.raises(httpx.ReadTimeout):
                    client.get(f"/v1/jobs/{job.id}/membership", params=params, timeout=0.2)
        wait_until("nobody waits any more", lambda: polls.n_waiters == 0)
