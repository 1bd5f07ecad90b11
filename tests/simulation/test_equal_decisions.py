"""The service and the simulator decide the same for the same trace (docs/faults.md says what is the same)."""

from __future__ import annotations

import random

import pytest
from optimus_world.users import Act
from optimus_world.world import Script, run


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_service_decides_as_the_simulator_does(seed: int) -> None:
    chance = random.Random(seed)
    arrivals = sorted(chance.uniform(5.0, 1200.0) for _ in range(9))
    acts = tuple(Act(number, at, "submit", number) for number, at in enumerate(arrivals))
    outcome = run(Script(seed, 1.0, (), acts), until=3600.0)
    assert outcome.violation is None, "\n".join(outcome.story[-20:])
    assert outcome.n_jobs == len(acts)
