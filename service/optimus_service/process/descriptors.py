"""How many file descriptors the service has, and how many connections that permits.

Whatever waits for long (long polls, live views) may hold a part of all connections only: the rest is there for requests
that are answered at once.
"""

from __future__ import annotations

import resource

MAX_CONNECTIONS = 16_000
"""Above the long polls that may wait at one time (`hub.MAX_WAITERS`); some 20 KB of memory each."""
_WANTED = 65_536
_RESERVED = 512
"""Descriptors for all else: database connections (50 of SQLite have three files each), tasks, logs, and those that are
accepted at once."""


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as the system permits, up to what is of use; the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def most_connections(descriptors: int) -> int:
    """How many connections may be open with so many file descriptors (negative: no limit). Pure."""
    if descriptors < 0:
        return MAX_CONNECTIONS
    return max(min(MAX_CONNECTIONS, descriptors - min(_RESERVED, descriptors // 2)), 1)


def connections_now() -> int:
    """The same with the limit that is in force."""
    return most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def waiting_now(most: int, part: float) -> int:
    """How many may wait at one time: `most`, and no more than this part of all connections."""
    return max(min(most, int(part * connections_now())), 1)
