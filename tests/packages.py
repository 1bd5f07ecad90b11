"""Packages that some tests need for processes of their own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need(*packages: str) -> None:
    """Skip where one is not installed. Nothing is imported: that takes seconds, and this process does not need it."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
