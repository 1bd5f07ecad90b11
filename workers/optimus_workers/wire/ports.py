"""Ports of this machine for those who listen later: each is found free, and stays free until they do."""

from __future__ import annotations

import socket


def reserve_port(host: str) -> int:
    """A port of the address `host` on which nothing listens, kept from everybody but those who ask for it by number.

    The kernel gives a port that it has just freed to the next one who asks for any, before whoever is to listen there
    does. So a connection to the port is made, and closed by its listener first: the port is in `TIME_WAIT` for a
    minute, in which it is nobody's by chance. Listeners with `SO_REUSEADDR` get it, as those of torch, uvicorn and
    Go's programs do.

    Raises:
        OSError: `host` is not an address of this machine, or no port is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        address = listener.getsockname()
        with socket.create_connection(address[:2], timeout=_SECONDS):
            accepted, _ = listener.accept()
            accepted.close()
        return int(address[1])


_SECONDS = 10.0
"""For a connection within the machine."""
