"""Each seeded bug is noticed by the simulation, within its budget of simulated seconds."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from optimus_world.world import run
from tests.simulation.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_the_bug_is_noticed(mutation: Mutation) -> None:
    with ExitStack() as stack:
        mutation.patch(stack)
        found = run(mutation.script, mutation.seconds).violation
    assert found is not None, "no invariant was found broken"
    assert found.invariant == mutation.invariant


@pytest.mark.parametrize("name", ["a coordinator dismisses tasks by what it heard before they came"])
def test_without_a_bug_nothing_is_noticed(name: str) -> None:
    (mutation,) = (each for each in MUTATIONS if each.name == name)
    assert run(mutation.script, mutation.seconds).violation is None
