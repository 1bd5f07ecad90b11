"""The control messages: one frozen dataclass each, one line of JSON each.

Epochs are membership epochs; a message of an epoch that is over is ignored. Versions count updates of the parameters:
version t is what step t (counted from 0) starts from.
"""

from __future__ import annotations

from typing import ClassVar

from optimus_workers.wire.from_task import (
    Assumed,
    AssumeFailed,
    DataLost,
    Done,
    Evaluated,
    Failed,
    Halted,
    Hello,
    Joined,
    Leave,
    Pong,
    Publish,
    Saved,
    SaveFailed,
    SnapshotTaken,
)
from optimus_workers.wire.to_task import (
    Assume,
    Challenge,
    Evaluate,
    Exit,
    Go,
    Halt,
    Join,
    Ping,
    Published,
    Recount,
    Release,
    Save,
    Welcome,
)

__all__ = [
    "Assume",
    "AssumeFailed",
    "Assumed",
    "Challenge",
    "DataLost",
    "Done",
    "Evaluate",
    "Evaluated",
    "Exit",
    "Failed",
    "FromTask",
    "Go",
    "Halt",
    "Halted",
    "Hello",
    "Join",
    "Joined",
    "Kinds",
    "Leave",
    "Ping",
    "Pong",
    "Publish",
    "Published",
    "Recount",
    "Release",
    "Save",
    "SaveFailed",
    "Saved",
    "SnapshotTaken",
    "ToTask",
    "Welcome",
]

ToTask = (
    Challenge | Welcome | Ping | Halt | Assume | Release | Join | Go | Recount | Save | Evaluate | Published | Exit
)  # fmt: skip
FromTask = (
    Hello | Pong | Halted | Assumed | AssumeFailed | Joined | Done | DataLost | SnapshotTaken | Saved | SaveFailed
    | Evaluated | Publish | Leave | Failed
)  # fmt: skip


class Kinds:
    """Class name → class, for each direction."""

    to_task: ClassVar[dict[str, type[ToTask]]] = {
        kind.__name__: kind
        for kind in (
            Challenge,
            Welcome,
            Ping,
            Halt,
            Assume,
            Release,
            Join,
            Go,
            Recount,
            Save,
            Evaluate,
            Published,
            Exit,
        )
    }
    from_task: ClassVar[dict[str, type[FromTask]]] = {
        kind.__name__: kind
        for kind in (
            Hello, Pong, Halted, Assumed, AssumeFailed, Joined, Done, DataLost, SnapshotTaken, Saved, SaveFailed,
            Evaluated, Publish, Leave, Failed,
        )
    }  # fmt: skip
