"""Values that Python takes for nothing, in every field of what users send: a wrong kind is wrong, empty or not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from optimus_contract.batch import JobBatch, JobSelection
from optimus_contract.change import JobChange
from optimus_contract.codec import field_types
from optimus_contract.job import JobSpec
from optimus_contract.message import Message
from optimus_contract.people import ProjectLimits, ProjectQuota, UserLimits
from optimus_service.requests import checked

BASES: list[tuple[type[Message], dict[str, Any]]] = [
    (JobSpec, {"name": "a", "task": "m:f"}),
    (JobSpec, {"name": "a", "task": "m:f", "architecture": "allreduce"}),
    (JobSpec, {"name": "a", "command": ["python", "train.py"]}),
    (JobSpec, {"name": "a", "command": ["torchrun", "train.py"], "convergence": {"max_steps": 1}}),
    (JobSpec, {"name": "a", "tracked": True}),
    (JobBatch, {"jobs": [{"name": "a"}]}),
    (JobSelection, {"labels": {"a": "b"}}),
    *((kind, {}) for kind in (JobChange, ProjectQuota, ProjectLimits, UserLimits)),
]
FALSY: list[Any] = [0, 0.0, "", [], {}, False]


def fits(annotation: Any, value: Any) -> bool:
    """Whether the field alone may have the value."""
    try:
        TypeAdapter(annotation).validate_python(value, strict=not isinstance(value, dict))
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(("kind", "base"), BASES)
def test_an_empty_value_of_a_wrong_kind_is_refused_by_its_field(kind: type[Message], base: dict[str, Any]) -> None:
    """`"workers": 0` beside a command was taken for workers that were left out."""
    for name, annotation in field_types(kind).items():
        for value in FALSY:
            is_left_out = (name, value) == ("convergence", {})  # of a script, whose rule is that its command ends
            if is_left_out or fits(annotation, value):
                continue  # whether it goes with the others is another matter
            with pytest.raises(ValidationError) as told:
                checked(kind, {**base, name: value})
            assert name in {error["loc"][0] for error in told.value.errors() if error["loc"]}, (name, value)
