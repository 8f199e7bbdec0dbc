"""docs/flow.md names real functions and modules."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "flow.md").read_text()
DIAGRAMS = "\n".join(re.findall(r"```\n(.*?)```", DOCUMENT, re.DOTALL))
PROSE = re.sub(r"```\n.*?```", "", DOCUMENT, flags=re.DOTALL)


def members(owner: ast.ClassDef) -> Iterator[str]:
    """Yield the methods of a class, and the attributes that its body declares."""
    for node in owner.body:
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.AnnAssign(ast.Name(name)):
                yield name


@cache
def defined() -> frozenset[str]:
    """Return `name` of functions, classes and constants, and `Owner.name` of members, inherited ones included."""
    names: set[str] = set()
    methods: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for top in ("broker", "protocol"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                match node:
                    case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                        names |= {name, f"{path.stem}.{name}"}
                    case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                        names.add(name)
                    case ast.ClassDef(name):
                        methods.setdefault(name, set()).update(members(node))
                        bases.setdefault(name, set()).update(ast.unparse(base).split("[")[0] for base in node.bases)

    def all_methods(owner: str) -> set[str]:
        return methods[owner].union(*(all_methods(base) for base in bases[owner] if base in methods))

    return frozenset(names.union(methods, *({f"{owner}.{name}" for name in all_methods(owner)} for owner in methods)))


def test_every_name_in_the_diagrams_exists() -> None:
    lines = re.findall(r"^ *(?:or )?((?:\w+\.)?\w+(?:(?:, | or )(?:\w+\.)?\w+)*)(?= {2,}|$)", DIAGRAMS, re.MULTILINE)
    names = {name for line in lines for name in re.split(", | or ", line)}
    assert len(names) > 40
    assert sorted(names - defined()) == []


def test_every_name_in_the_prose_exists() -> None:
    names = set(re.findall(r"`((?:[A-Z]\w*\.)?\w+)`", PROSE)) - {"await", "pwritev"}
    assert len(names) > 40
    assert sorted(names - defined()) == []


def test_every_path_in_it_exists() -> None:
    paths = set(re.findall(r"\b(?:broker|protocol|tests)/[\w/]+\.py\b", DOCUMENT))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
