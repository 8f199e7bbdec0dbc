"""Check CONTRIBUTING.md against the code: each of its examples is in the file that it names."""

import re
import textwrap

import pytest

from tests.documents import ROOT
from warmlog.broker.settings.documentation import documentation_of
from warmlog.broker.settings.settings import FIELDS
from warmlog.protocol.kafka.api import APIS

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = [
    (path, textwrap.dedent(block))
    for path, block in re.findall(r"^ *```(?:python|toml|text) (\S+)\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)
]
HEADINGS = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def contains(source: str, example: str) -> bool:
    """Return whether a file has the example's lines one after the other, whatever their indentation.

    Of the example's last line, and of its only one, the beginning is enough: the file may go on there.
    """
    wanted, found = lines_of(example), lines_of(source)
    *whole, last = wanted
    return any(
        found[start : start + len(whole)] == whole and last in found[start + len(whole)]
        for start in range(len(found) - len(whole))
    )


@pytest.mark.parametrize(("path", "example"), EXAMPLES)
def test_every_example_is_in_the_file_that_it_names(path: str, example: str) -> None:
    assert contains((ROOT / path).read_text(), example)


def test_an_example_that_is_not_in_a_file_is_found_out() -> None:
    assert contains("class A:\n    x = 1\n    y = 2  # more\n", "x = 1\ny = 2\n")
    assert not contains("x = 1\nz = 3\ny = 2\n", "x = 1\ny = 2\n")


def test_each_recipe_has_examples() -> None:
    sections = dict(zip(HEADINGS, re.split(r"^## .+$", TEXT, flags=re.MULTILINE)[1:], strict=True))
    for what in ("a setting", "a metric", "an API"):
        assert len(re.findall(r"^ *```(?:python|toml|text) \S+$", sections[f"How do I add {what}?"], re.MULTILINE)) >= 4


def test_the_examples_are_a_setting_and_an_api_that_exist() -> None:
    assert "group.initial.rebalance.delay.ms" in FIELDS
    assert documentation_of("group.initial.rebalance.delay.ms")
    assert [(api.key, api.name) for api in APIS if api.name == "OffsetDelete"] == [(47, "OffsetDelete")]


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?:^|`)make ([\w-]+)", TEXT, re.MULTILINE))
    assert named >= {"setup", "run", "test", "lint", "bench", "docs"}
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_the_workload_that_it_names_exists() -> None:
    (name,) = re.findall(r'^make bench ARGS="(\S+) --rounds', TEXT, re.MULTILINE)
    assert f'"{name}"' in (ROOT / "benchmarks" / "workloads" / "kafka.py").read_text()


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:docs|deploy|interop|protocol|broker|warmlog|tests)/[\w./-]*)`", TEXT)))
)
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()
