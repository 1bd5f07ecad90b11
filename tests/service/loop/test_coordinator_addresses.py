"""Where coordinators listen: chosen once, kept, and moved only when somebody else sits there."""

from __future__ import annotations

import socket

import pytest
from tests.service.loop.loop_world import World

from optimus_scheduler.model import Role, TaskKey
from optimus_service.loop import launch

COORDINATOR = TaskKey("job-1", Role.COORDINATOR, 0)


def test_chosen_address_can_be_listened_on() -> None:
    address = launch.choose_address(())
    host, port = address.split(":")
    with socket.create_server((host, int(port))):
        assert not launch.is_free(address)
    assert launch.is_free(address)


def test_taken_addresses_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_PORTS", range(20_000, 20_200))
    taken = {f"127.0.0.1:{port}" for port in range(20_000, 20_200)}
    with pytest.raises(launch.NoFreePort):
        launch.choose_address(taken)
    taken.remove("127.0.0.1:20077")
    assert launch.choose_address(taken) == "127.0.0.1:20077"


def test_replaced_coordinator_keeps_the_address(world: World) -> None:
    world.submit()
    world.round()
    before = world.repository.jobs.get("job-1").coordinator_address
    world.cluster.exit(COORDINATOR, 137)
    world.round()
    assert world.repository.jobs.get("job-1").coordinator_address == before
    assert world.cluster.launches[-1].environment["OPTIMUS_COORDINATOR_ADDRESS"] == before


def test_coordinator_moves_when_its_port_was_taken(world: World) -> None:
    world.submit()
    world.round()
    before = world.repository.jobs.get("job-1").coordinator_address
    assert before is not None
    host, port = before.split(":")
    world.cluster.exit(COORDINATOR, 137)
    with socket.create_server((host, int(port))):
        world.round()
    after = world.repository.jobs.get("job-1").coordinator_address
    assert after not in (None, before)
    assert world.cluster.launches[-1].environment["OPTIMUS_COORDINATOR_ADDRESS"] == after


def test_jobs_have_different_addresses(world: World) -> None:
    for number in range(3):
        world.submit(f"job-{number}")
    world.round()
    found = {world.repository.jobs.get(f"job-{number}").coordinator_address for number in range(3)}
    assert len(found - {None}) == 3
