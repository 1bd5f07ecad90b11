"""torch's random numbers are seeded as by torch itself, without what only accelerators need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from optimus_workers.data import seeding
from optimus_workers.data.seeding import seed_torch


@pytest.fixture(autouse=True)
def _asks_anew() -> Iterator[None]:
    seeding._may_have_accelerator.cache_clear()
    with torch.random.fork_rng(devices=[]):
        yield
    seeding._may_have_accelerator.cache_clear()


def _calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that torch's own function is given."""
    found: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", found.append)
    return found


@pytest.mark.parametrize("is_available", [False, True])
def test_numbers_are_those_of_the_seed(monkeypatch: pytest.MonkeyPatch, is_available: bool) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: is_available)
    seed = 2**63 - 5
    torch.manual_seed(seed)
    expected = torch.rand(8)
    seed_torch(seed)
    assert torch.equal(torch.rand(8), expected)


def test_without_accelerators_none_is_prepared_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    calls = _calls(monkeypatch)
    seed_torch(7)
    assert not calls


def test_all_generators_are_seeded_where_there_is_an_accelerator_or_none_can_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    calls = _calls(monkeypatch)
    seed_torch(7)
    seeding._may_have_accelerator.cache_clear()
    monkeypatch.delattr(torch, "accelerator")
    seed_torch(8)
    assert calls == [7, 8]
