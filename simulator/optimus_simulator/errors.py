"""What can go wrong in a simulation.

SimulatorError
├── BadTrace    a file cannot be read as what it is said to be
└── Stuck       jobs do not end; the message has the seed and the command that replays it
"""

from __future__ import annotations


class SimulatorError(Exception):
    """Base of all expected failures; the message is meant for the user."""


class BadTrace(SimulatorError):
    """A trace or profile cannot be read."""


class Stuck(SimulatorError):
    """The simulation came to its limit with jobs that have not ended."""
