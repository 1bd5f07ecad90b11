"""What `mkdocs build` adds to the pages in docs/: the API reference, and the pages that lie at the repository's root.

Pages link to files as they lie in the repository, where they are read as well. Links to the pages at its root become
links to those of the site; other links out of docs/ become plain words: a site has no folder beside it.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.repository import Repository

ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)*(?:examples|scripts|benchmarks|helm|service|workers|simulator|models|tests)\b[^)]*\)"
)
_FROM_ROOT = re.compile(r"\]\(docs/([^)]*)\)")
_AT_ROOT = {"contribute.md": "CONTRIBUTING.md", "changes.md": "CHANGELOG.md"}
_TO_ROOT = re.compile(rf"\]\(((?:\.\./)*)\.\./({'|'.join(map(re.escape, _AT_ROOT.values()))})\b")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that the navigation does not name come at its end: none is lost."""
    named = set(re.findall(r"[\w/-]+\.md", json.dumps(config.nav)))
    unnamed = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in named)
    if unnamed and config.nav is not None:
        config.nav.append({"More": unnamed})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    for name, source in _AT_ROOT.items():
        files.append(File.generated(config, name, content=_FROM_ROOT.sub(r"](\1)", (ROOT / source).read_text())))
    files.append(File.generated(config, "api-reference.md", content=api_reference(openapi())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs calls it
    """Links to pages of the root lead to the site's; others that lead out of docs/ keep their words only."""
    page_of = {source: name for name, source in _AT_ROOT.items()}
    return _OUTSIDE.sub(r"\1", _TO_ROOT.sub(lambda found: f"]({found[1]}{page_of[found[2]]}", markdown))


def openapi() -> dict[str, Any]:
    """The service's own description of its API."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_directory=Path(folder))
        repository = Repository(create_engine_from_url(settings.url))
        services = Services(
            settings=settings,
            repository=repository,
            cluster=FakeCluster([]),
            long_polls=LongPolls(repository.wanted.generations),
            job_tokens=JobTokens(b"nobody's secret"),
            version=version("optimus-scheduler"),
        )
        document: dict[str, Any] = create_app(services).openapi()
        repository.close()
    return document


def api_reference(document: Mapping[str, Any]) -> str:
    """All calls and all bodies as a page. Pure."""
    return "\n".join(_lines(document))


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield "# All calls\n"
    yield "What the service itself says at `/docs`. [The REST API](api.md) says what holds for all of them.\n"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"## {method.upper()} {path}\n"
            yield f"{operation.get('description', '')}\n"
            yield from _parameters(operation)
            answers = (_answer(status, answer) for status, answer in operation["responses"].items())
            yield f"Answers {', '.join(answers)}.\n"
    yield "# Bodies\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"## {name}\n"
        yield f"{schema.get('description', '')}\n"
        yield from _fields(schema)


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        yield f"Body: {_type(body)}\n"
    if operation.get("parameters"):
        yield "| parameter | in | type | |\n|---|---|---|---|"
        for each in operation["parameters"]:
            yield f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {_text(each)} |"
        yield ""


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    if not schema.get("properties"):
        return
    required = set(schema.get("required", ()))
    yield "| field | type | |\n|---|---|---|"
    for name, part in schema["properties"].items():
        default = f" Default `{json.dumps(part['default'])}`." if "default" in part else ""
        yield f"| `{name}`{' (required)' if name in required else ''} | {_type(part)} | {_text(part)}{default} |"
    yield ""


def _answer(status: str, answer: Mapping[str, Any]) -> str:
    schema = answer.get("content", {}).get("application/json", {}).get("schema")
    return f"{status} {_type(schema)}" if schema else status


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", "anything"))


def _text(part: Mapping[str, Any]) -> str:
    return str(part.get("description", "")).replace("|", "\\|").replace("\n", " ")
