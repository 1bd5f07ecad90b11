"""The custom resource `TrainingJob`, made from the body of `POST /v1/jobs`: what a job file says is what `spec` says.

`python -m optimus_service.crd.definition` prints it as the chart has it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from optimus_contract.job import JobSpec
from optimus_contract.limits import MAX_COUNT
from optimus_service.requests import adapter

Json = dict[str, Any]
GROUP, VERSION, PLURAL, KIND = "optimus.dev", "v1alpha1", "trainingjobs", "TrainingJob"
_KEPT = (
    "type",
    "description",
    "enum",
    "format",
    "items",
    "maximum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minimum",
    "minItems",
    "minLength",
    "nullable",
    "pattern",
    "properties",
    "required",
)
"""Of JSON Schema, what a structural schema may say too. Defaults are the service's: written into objects they would
stay there when the service's change."""
_SIZES = ("memory_bytes",)
"""Numbers that may also be written like 512Mi."""


def definition() -> Json:
    """The CustomResourceDefinition."""
    schema = adapter(JobSpec).json_schema()
    spec = _structural(schema, schema["$defs"])
    for name in ("name", "labels"):  # the object's own
        spec["properties"].pop(name)
    spec["properties"].pop("tracked")  # an object asks for tasks
    # The API server drops empty lists. A job trains a task or runs a command.
    required = [name for name in spec.pop("required") if name != "name"]
    spec |= {"required": required} if required else {}
    spec["anyOf"] = [{"required": ["task"]}, {"required": ["command"]}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["tj"],
                "categories": ["all"],
            },
            "versions": [_version(spec)],
        },
    }


def _version(spec: Json) -> Json:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.workers.max",
                "statusReplicasPath": ".status.workers",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": "State", "type": "string", "jsonPath": ".status.state"},
            {"name": "W", "type": "integer", "jsonPath": ".status.workers", "description": "workers"},
            {"name": "P", "type": "integer", "jsonPath": ".status.servers", "description": "parameter servers"},
            {"name": "Loss", "type": "string", "jsonPath": ".status.loss"},
            {"name": "Progress", "type": "string", "jsonPath": ".status.progress"},
            {"name": "ETA", "type": "string", "jsonPath": ".status.eta", "description": "time left, as predicted"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            {"name": "Reason", "type": "string", "jsonPath": ".status.reason", "priority": 1},
            {"name": "Installation", "type": "string", "jsonPath": ".status.installation", "priority": 1},
            {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
        ],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": "A training job that Optimus schedules. Deleting it cancels the job.",
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": spec,
                    "status": _status(),
                },
            }
        },
    }


def _status() -> Json:
    fields: dict[str, tuple[str, str]] = {
        "jobId": ("string", "the job's id in the REST API"),
        "state": ("string", "queued, running, paused, succeeded, failed, cancelled, or refused"),
        "workers": ("integer", "workers in the current membership"),
        "servers": ("integer", "parameter servers in the current membership"),
        "step": ("integer", "steps completed"),
        "loss": ("string", "of the newest sample"),
        "progress": ("string", "of the predicted total"),
        "eta": ("string", "time left, as predicted"),
        "reason": ("string", "reason code of the last decision"),
        "message": ("string", "that decision, or what is wrong, in a sentence"),
        "selector": ("string", "selects the pods of its workers"),
        "installation": ("string", "the installation that took this object, as NAMESPACE.INSTANCE"),
        "observedGeneration": ("integer", "the generation of the object that this status knows of"),
    }
    properties = {name: {"type": kind, "description": text} for name, (kind, text) in fields.items()}
    return {"type": "object", "properties": properties}


def _structural(schema: Json, definitions: Json) -> Json:
    """The same schema without references, alternatives and what a structural schema does not know."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return _structural({**target, **{name: value for name, value in schema.items() if name != "$ref"}}, definitions)
    if "anyOf" in schema:
        return _alternatives(schema, definitions)
    found = {name: schema[name] for name in _KEPT if name in schema}
    if "const" in schema:
        found["enum"] = [schema["const"]]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        # Beyond 2^53 a bound would be rounded on its way; the service checks it itself.
        if exclusive in schema and abs(schema[exclusive]) <= MAX_COUNT:
            found |= {bound: schema[exclusive], exclusive: True}
    if "items" in found:
        found["items"] = _structural(found["items"], definitions)
    if "properties" in found:
        found["properties"] = {
            name: _size(value) if name in _SIZES else _structural(value, definitions)
            for name, value in found["properties"].items()
        }
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    return found


def _alternatives(schema: Json, definitions: Json) -> Json:
    """Something or null becomes nullable; of really different types, anything is let through to the service's check."""
    options = [each for each in schema["anyOf"] if each.get("type") != "null"]
    if len(options) > 1:
        return {"x-kubernetes-preserve-unknown-fields": True}
    only = _structural(options[0], definitions)
    if "description" in schema:
        only["description"] = schema["description"]
    return {**only, "nullable": True} if len(options) < len(schema["anyOf"]) else only


def _size(schema: Json) -> Json:
    return {"description": schema.get("description", ""), "x-kubernetes-int-or-string": True}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(definition(), indent=1) + "\n")
