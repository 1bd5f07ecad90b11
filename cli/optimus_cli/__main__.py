"""`optimus` and `python -m optimus_cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script, which pip writes with every extra, also without the command line's own."""
    try:
        from optimus_cli.app import app
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("optimus_"):
            raise
        sys.exit(f"Error: The command line is not installed here ({error}): pip install 'optimus-scheduler[cli]'")
    app(prog_name="optimus")


if __name__ == "__main__":
    main()
