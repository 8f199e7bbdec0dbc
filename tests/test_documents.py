"""Check the documents that people read first: their links lead somewhere, and their lines fit."""

import pytest

from tests.documents import ROOT, long_lines, missing_links

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/formats.md",
    "docs/goals.md",
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
