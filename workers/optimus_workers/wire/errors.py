"""What can go wrong between tasks.

WorkersError
└── WireError          the other end sent something that the protocol does not allow, or does not know the job token
    └── ConnectionOver the other end is gone
"""

from __future__ import annotations

from optimus_workers.errors import WorkersError


class WireError(WorkersError):
    """What arrived is not of the protocol. The connection is of no further use."""


class ConnectionOver(WireError):
    """The other end closed the connection, or the network did."""
