"""Ports that are reserved for those who listen later."""

from __future__ import annotations

import socket

import pytest

from optimus_workers.wire.ports import reserve_port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_reserved_port_is_for_those_who_ask_for_it_by_number(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        port = reserve_port(host)
    except OSError:
        pytest.skip(f"this machine has no address {host}")
    with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
        other.bind((host, port))
    with socket.create_server((host, port), family=family) as listener:  # with SO_REUSEADDR
        assert listener.getsockname()[1] == port


def test_no_port_is_reserved_twice() -> None:
    ports = [reserve_port("127.0.0.1") for _ in range(500)]
    assert len(set(ports)) == len(ports)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        reserve_port("192.0.2.1")
