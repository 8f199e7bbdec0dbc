"""docs/flow.md names real functions."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_name_on_the_two_lines_exists() -> None:
    document = (ROOT / "docs" / "flow.md").read_text()
    lines = "\n".join(re.findall(r"```\n(.*?)```", document, re.DOTALL))
    named = set(re.findall(r"^ *((?:\w+\.)?\w+(?:, (?:\w+\.)?\w+)*)(?= {2,}|$)", lines, re.MULTILINE))
    names = {name for group in named for name in group.split(", ")}
    assert len(names) > 20
    sources = "\n".join(path.read_text() for top in ("broker", "protocol") for path in (ROOT / top).rglob("*.py"))
    for name in names:
        owner, _, function = name.rpartition(".")
        assert re.search(rf"(def|class) {function}\b", sources), name
        if owner[:1].isupper():
            assert re.search(rf"class {owner}\b", sources), name


def test_every_path_in_it_exists() -> None:
    document = (ROOT / "docs" / "flow.md").read_text()
    paths = set(re.findall(r"\b(?:broker|protocol|tests)/[\w/]+\.py\b", document))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
