"""`python -m optimus_workers.script.bundle DIRECTORY`: copy the agent into a directory, for an image that lacks it.

What is copied is Python source alone: an interpreter of version 3.11 or newer runs it with `python3 DIRECTORY/run.py`.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

PACKAGES = ("optimus_contract", "optimus_workers", "httpx", "httpcore", "h11", "anyio", "idna", "certifi")
"""What an agent imports beside the standard library."""
OPTIONAL = ("sniffio", "typing_extensions")
"""What some versions of these need."""
RUN = '''"""Runs the agent with the packages that lie beside this file."""

import runpy
import sys
from pathlib import Path

if sys.version_info < (3, 11):
    sys.stderr.write(f"the agent of Optimus needs Python 3.11 or newer; python3 here is {sys.version.split()[0]}\\n")
    sys.exit(2)
sys.path[0] = str(Path(__file__).parent / "packages")
runpy.run_module("optimus_workers", run_name="__main__", alter_sys=True)
'''


def bundle(directory: Path) -> None:
    """Copy the packages and the program. Raises `OSError`, or `ImportError` for a package that is not installed."""
    packages = directory / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    for name in (*PACKAGES, *OPTIONAL):
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            if name in OPTIONAL:
                continue
            raise ImportError(f"{name} is not installed")
        source = Path(found.origin)
        if source.name == "__init__.py":
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(source.parent, packages / name, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(source, packages / source.name)
    (directory / "run.py").write_text(RUN)


if __name__ == "__main__":
    bundle(Path(sys.argv[1]))
