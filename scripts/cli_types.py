"""The answers that the command line reads, as types of the JSON that it gets and prints: cli/optimus_cli/bodies.py.

python -m scripts.cli_types
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from optimus_contract import answers
from optimus_contract.codec import field_types
from optimus_contract.job import JobSpec
from optimus_contract.message import Message

FILE = Path(__file__).parents[1] / "cli" / "optimus_cli" / "bodies.py"
READ = (
    answers.Job,
    answers.BatchOutcome,
    answers.Event,
    answers.Decision,
    answers.Explanation,
    answers.Plan,
    answers.ChangePlan,
    answers.Predictions,
    answers.AllocationPoint,
    answers.Task,
    answers.Log,
    answers.Project,
    answers.Node,
    answers.Cluster,
    answers.Scorecard,
    answers.User,
    answers.Token,
    answers.MadeToken,
    answers.DeviceSignIn,
    answers.DeviceProgress,
    answers.WhoAmI,
    answers.AuditEntry,
    answers.Usage,
    answers.QueuedJob,
)
HEAD = '''\
"""The answers of the REST API as JSON: made from `optimus_contract` by `python -m scripts.cli_types`, not to be edited.

`None` means that nothing is known yet. The bodies are only described here, not checked: the service has done that, and
an older client must survive a newer service's fields, which `--json` prints as well.
"""

from __future__ import annotations

from typing import Any, TypedDict
'''


def text() -> str:
    """The module."""
    kinds = list(dict.fromkeys(kind for read in READ for kind in _needed(read)))
    return "\n\n".join([HEAD, *(_body(kind) for kind in kinds)])


def _needed(kind: type[Message]) -> Iterator[type[Message]]:
    """The messages in it, and itself after them."""
    for annotation in field_types(kind).values():
        for inner in _messages(annotation):
            yield from _needed(inner)
    yield kind


def _messages(annotation: Any) -> Iterator[type[Message]]:
    if isinstance(annotation, type) and issubclass(annotation, Message) and annotation is not JobSpec:
        yield annotation
    for part in get_args(annotation):
        yield from _messages(part)


def _body(kind: type[Message]) -> str:
    lines = [f"    {name}: {_type(annotation)}" for name, annotation in field_types(kind).items()]
    return "\n".join([f"class {kind.__name__}(TypedDict):", *lines, ""])


def _type(annotation: Any) -> str:
    """As JSON has it: moments and words of a closed list are text, a specification is as the service wrote it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(_type(each) for each in arguments)
    if origin is Literal or annotation is datetime:
        return "str"
    if origin in (list, dict):
        return f"{origin.__name__}[{', '.join(_type(each) for each in arguments)}]"
    if annotation is JobSpec:
        return "dict[str, Any]"
    if annotation is Any or annotation is type(None):
        return "Any" if annotation is Any else "None"
    return str(annotation.__name__)


if __name__ == "__main__":
    FILE.write_text(text())
