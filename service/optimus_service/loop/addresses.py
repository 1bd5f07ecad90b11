"""Where a job's coordinator listens: a port of this machine, chosen once and kept."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections (32768 and up): while a coordinator is being replaced, no
client's connection can take its port."""
_TRIES = 200
"""Far more than are needed unless nearly all of the 12,000 ports are taken."""


class NoFreePort(Exception):
    """No port was found for a coordinator."""


def choose_address(taken: Collection[str]) -> str:
    """`host:port` with a port that nobody listens on now and that is not in `taken`.

    Raises:
        NoFreePort: `_TRIES` random ports were all taken.
    """
    for port in random.sample(_PORTS, _TRIES):
        address = f"{HOST}:{port}"
        if address not in taken and is_free(address):
            return address
    raise NoFreePort(f"none of {_TRIES} ports from {_PORTS.start} to {_PORTS.stop - 1} was free")


def is_free(address: str) -> bool:
    """Whether one could listen on `host:port` now."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        # As servers do: connections that are still being closed are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
        return True
