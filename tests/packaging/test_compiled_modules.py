"""What mypyc compiles otherwise than Python runs it."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["warmlog"]["compiled"]["mypyc"]


def overriding_attributes(source: str) -> Iterator[str]:
    """Yield the class attributes of exceptions: a compiled subclass has those of its base instead (mypyc 2.4)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and any(
            ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases
        ):
            for statement in node.body:
                if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) != "__slots__":
                    yield f"{node.name}.{ast.unparse(statement.targets[0])}"


@pytest.mark.parametrize("module", COMPILED)
def test_no_exception_of_a_compiled_module_overrides_an_attribute(module: str) -> None:
    assert list(overriding_attributes((ROOT / module.removeprefix("warmlog/")).read_text())) == []


def test_an_overriding_attribute_is_found() -> None:
    source = (
        "class A(ProtocolError):\n    '''Text.'''\n    code = 35\nclass B(A):\n    code = 36\nclass C(X):\n    code = 1"
    )
    assert list(overriding_attributes(source)) == ["A.code"]
