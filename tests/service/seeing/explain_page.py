"""Writes the generated part of docs/explain.md: `python -m tests.service.seeing.explain_page`."""

from __future__ import annotations

from tests.service.seeing.test_explanation import BEGIN, DOCUMENT, END

from optimus_service.insight.reasons import as_markdown


def main() -> None:
    """Replace what stands between the two marks."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(before + BEGIN + as_markdown() + END + after)


if __name__ == "__main__":
    main()
