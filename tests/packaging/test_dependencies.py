"""What the packages import is what pyproject.toml asks for."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "broker", "warmlog", "pyspark_warmlog")
#: `warmlog.testing` is a pytest plugin: whoever loads it has pytest.
BROUGHT_BY_THE_USER = {"pytest"}
#: What modules import while they are compiled, and never while they run; the second comes with mypy.
OF_THE_BUILD = {"cython", "mypy-extensions"}
#: Asked for because another library needs it and does not name the versions that it supports.
HELD_BACK = {"pandas"}
#: Of Python 3.14; older ones get the module from backports-zstd, which may not be installed.
IN_NEWER_PYTHON = {"compression"}
#: Packages that several distributions share, and the one whose modules are imported.
SHARED = {"backports": "backports-zstd", "google": "protobuf"}
#: Run by `python -m`.
RUN = {"grpcio-tools"}


def imported_names() -> Iterator[str]:
    """The top-level name of every absolute import, those inside functions, too."""
    for package in PACKAGES:
        for source in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(source.read_text())):
                if isinstance(node, ast.Import):
                    yield from (alias.name.split(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    yield node.module.split(".")[0]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_library_that_is_imported_is_asked_for_and_no_other() -> None:
    foreign = set(imported_names()) - set(sys.stdlib_module_names) - set(PACKAGES) - IN_NEWER_PYTHON
    distributions = packages_distributions()
    imported = {SHARED.get(name) or normalized(distributions[name][0]) for name in foreign}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked_for = (
        project["dependencies"]
        + extras["spark"]
        + extras["lakehouse"]
        + extras["schemas"]
        + extras["tls"]
        + extras["oauth"]
    )
    declared = {normalized(re.match(r"[\w.-]+", requirement)[0]) for requirement in asked_for}
    assert imported - BROUGHT_BY_THE_USER - OF_THE_BUILD == declared - HELD_BACK - RUN
