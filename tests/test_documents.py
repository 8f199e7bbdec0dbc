"""Check documents: links, lengths of lines, and that what decision records name exists.

`make lint` checks the links and lines of all pages; this needs no Sphinx.
"""

import re
from pathlib import Path

import pytest

from tests.documents import ROOT, long_lines, missing_links

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/alerts.md",
    "docs/capacity.md",
    "docs/formats.md",
    "docs/goals.md",
    "docs/monitoring.md",
    "docs/moving.md",
    "docs/operations.md",
    "docs/page-cache.md",
    "docs/sparse-index.md",
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    assert missing_links(ROOT / document) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_lines_of_prose_have_at_most_120_characters(document: str) -> None:
    assert long_lines(ROOT / document) == []


RECORDS = sorted((ROOT / "docs" / "adr").glob("0*.md"))
PATH = r"\b(?:broker|protocol|warmlog|tests|interop|docs|deploy|requirements)/[\w./-]*\w"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name[:4])
def test_every_path_that_a_decision_record_names_exists(record: Path) -> None:
    assert [path for path in re.findall(PATH, record.read_text()) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name[:4])
def test_the_table_of_decision_records_has_each_with_its_title_and_each_a_status(record: Path) -> None:
    title, _, status = record.read_text().splitlines()[:3]
    number, _, decided = title.removeprefix("# ").partition(". ")
    assert f"| [{number}]({record.name}) | {decided} |" in (record.parent / "README.md").read_text()
    assert status.startswith(("Accepted, ", "Replaced by ["))
