"""`optimus` and `python -m optimus_cli`."""

from __future__ import annotations

from optimus_cli.app import app


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="optimus")


if __name__ == "__main__":
    main()
