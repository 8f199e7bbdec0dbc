"""ARCHITECTURE.md names every package, and only files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "ARCHITECTURE.md").read_text()
DRAWING, PROSE = DOCUMENT.split("```")[1::2], "".join(DOCUMENT.split("```")[::2])
OWNERS = ("broker", "protocol", "warmlog")


def test_every_package_has_a_place_in_the_drawing_and_a_paragraph() -> None:
    packages = {
        f"{owner}/{path.parent.name}"
        for owner in OWNERS
        for path in (ROOT / owner).glob("*/__init__.py")
        if not path.parent.is_symlink()
    }
    assert len(packages) > 15
    for text in (*DRAWING, PROSE):
        named = set(re.findall(rf"(?:{'|'.join(OWNERS)})/\w+", text))
        assert sorted(packages - named) == []


def test_every_path_in_it_exists() -> None:
    paths = set(re.findall(rf"`((?:{'|'.join(OWNERS)}|tests)/[\w/.]+)`", PROSE))
    assert len(paths) > 20
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []
