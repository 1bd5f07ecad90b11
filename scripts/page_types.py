"""What the page at `/` is answered, as an OpenAPI document of schemas: `npm run types` makes TypeScript of it.

python -m scripts.page_types > answers.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import TypeAdapter

from optimus_contract import answers

SHOWN = (
    answers.AllocationPoint,
    answers.ClusterHistory,
    answers.ClusterLine,
    answers.Curves,
    answers.EvaluationSeries,
    answers.Event,
    answers.Explanation,
    answers.Job,
    answers.JobLine,
    answers.Log,
    answers.MadeToken,
    answers.Node,
    answers.Plan,
    answers.Predictions,
    answers.Problem,
    answers.Project,
    answers.Queue,
    answers.Scorecard,
    answers.SignInWays,
    answers.Token,
    answers.Usage,
    answers.User,
    answers.WhoAmI,
)


def document() -> dict[str, Any]:
    """The schemas of what the page reads, with all that they refer to."""
    wanted = [(each.__name__, "serialization", TypeAdapter(each)) for each in SHOWN]
    _, found = TypeAdapter.json_schemas(wanted, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Answers", "version": "1"},
        "paths": {},
        "components": {"schemas": _untitled(found["$defs"])},
    }


def _untitled(schema: Any) -> Any:
    """The same without titles, which only say the names again."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _untitled(each) for name, each in schema.items() if not (name == "title" and isinstance(each, str))}


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
