"""Where the service is, and the user's token: arguments over variables over the file that `optimus login` writes."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DEFAULT_URL = "http://127.0.0.1:8080"


class Place(NamedTuple):
    """A service and what it is spoken to with."""

    url: str
    token: str | None


def configuration_file() -> Path:
    """`~/.config/optimus/config.json`, or below XDG_CONFIG_HOME."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "optimus" / "config.json"


def stored() -> Place | None:
    """What the file says; None without one, or if it says nothing that can be understood."""
    try:
        document = json.loads(configuration_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home
        return None
    url = document.get("url") if isinstance(document, dict) else None
    token = document.get("token") if isinstance(document, dict) else None
    return Place(url, token if isinstance(token, str) else None) if isinstance(url, str) else None


def place(url: str | None = None, token: str | None = None) -> Place:
    """The service to speak to. The file's token goes to the file's address only, wherever that one came from; an empty
    `token` is none."""
    file = stored()
    found_url = url or os.environ.get("OPTIMUS_URL") or (file.url if file else DEFAULT_URL)
    found_token = os.environ.get("OPTIMUS_TOKEN") if token is None else token
    if token is None and not found_token and file is not None and found_url.rstrip("/") == file.url.rstrip("/"):
        found_token = file.token
    return Place(found_url, found_token or None)


def store(url: str, token: str | None) -> Path:
    """Write the file, which only its owner can read; its path."""
    path = configuration_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(prefix="config-", dir=path.parent)  # with mode 600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"url": url, "token": token}, file)
            file.write("\n")
        Path(scratch).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(scratch).unlink()
        raise
    return path
