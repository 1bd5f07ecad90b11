"""The API for people to read: the OpenAPI document as one plain page.

FastAPI's own page loads its script and style from a CDN. This one loads nothing, so it works on machines without a way
to the internet, and nobody elsewhere learns who reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from optimus_service.api.body import StrictRoute

_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.4 ui-monospace, monospace; } pre { background: #8881; padding: .5rem; overflow: auto; }
table { border-collapse: collapse; }
td { border-top: 1px solid #8884; padding: .2rem .8rem .2rem 0; vertical-align: top; }
h3 { margin-top: 2.5rem; } :root { color-scheme: light dark; }
"""
_LIMITS = (
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "maxItems",
    "pattern",
)
_REFERENCE = "#/components/schemas/"

router = APIRouter(route_class=StrictRoute, include_in_schema=False)


@router.get("/docs", response_class=HTMLResponse)
def show_docs(request: Request) -> HTMLResponse:
    """The page. It can be read without scripts, styles or pictures from anywhere else."""
    return HTMLResponse(docs_page(request.app.openapi()), headers={"Content-Security-Policy": _SECURITY_POLICY})


def docs_page(document: Mapping[str, Any]) -> str:
    """All calls, then all bodies, of an OpenAPI document. Pure."""
    calls = "".join(
        _call(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    bodies = "".join(_body(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    title = f"{document['info']['title']} {document['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>{escape(document['info']['description'])}</p>"
        f'<p>For programs: <a href="/openapi.json">/openapi.json</a>.</p><h2>Calls</h2>{calls}<h2>Bodies</h2>{bodies}'
    )


def _call(method: str, path: str, operation: Mapping[str, Any]) -> str:
    tokens = [name for need in operation.get("security", ()) for name in need]
    needs = f"needs the token of: {', '.join(tokens)}" if tokens else "needs no token"
    rows = (
        (parameter["name"], parameter["in"], parameter["schema"], parameter.get("description", ""))
        for parameter in operation.get("parameters", ())
    )
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return (
        f"<h3><code>{method.upper()} {escape(path)}</code></h3><p>{escape(operation.get('description', ''))}</p>"
        f"<p>{needs}; answers {_answers(operation['responses'])}</p>"
        + _table((f"<code>{escape(name)}</code> ({where})", schema, text) for name, where, schema, text in rows)
        + (f"<p>Body: {_type(body['schema'])}</p>" if body else "")
        + "".join(_example(name, example) for name, example in body.get("examples", {}).items())
    )


def _answers(responses: Mapping[str, Any]) -> str:
    return ", ".join(f"{status} {_answer_type(answer)}".strip() for status, answer in responses.items())


def _answer_type(answer: Mapping[str, Any]) -> str:
    schema = answer.get("content", {}).get("application/json", {}).get("schema")
    return _type(schema) if schema else ""


def _example(name: str, example: Mapping[str, Any]) -> str:
    words = escape(example.get("summary", name))
    return f"<details><summary>{words}</summary><pre>{escape(json.dumps(example['value'], indent=2))}</pre></details>"


def _body(name: str, schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = (
        (f"<code>{escape(field)}</code>{' (required)' if field in required else ''}", part, part.get("description", ""))
        for field, part in schema.get("properties", {}).items()
    )
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{escape(schema.get("description", ""))}</p>{_table(rows)}'


def _table(rows: Iterable[tuple[str, Mapping[str, Any], str]]) -> str:
    cells = "".join(
        f"<tr><td>{name}<td>{_type(schema)}<td>{'; '.join(_limits(schema))}<td>{escape(text)}"
        for name, schema, text in rows
    )
    return f"<table>{cells}</table>" if cells else ""


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return escape(", ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")])))
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    return escape(str(schema.get("type", "anything")))


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    for part in (schema, *schema.get("anyOf", ())):
        yield from (escape(f"{name} {part[name]}") for name in _LIMITS if name in part)
    if "default" in schema:
        yield escape(f"default {json.dumps(schema['default'])}")
