"""ARCHITECTURE.md names every package, draws the layers of the import contracts, and names only files that exist."""

import re
import tomllib
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


def test_the_drawing_has_the_layers_of_the_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in contracts if each.get("containers") == ["warmlog.broker"]]
    lines = re.sub(r"\n {2,}", " ", DRAWING[0]).splitlines()  # an indented line belongs to the line before
    drawn = [set(found) for line in lines if (found := re.findall(r"broker/(\w+)", line))]
    assert drawn == [set(layer.split(" | ")) for layer in layers]
