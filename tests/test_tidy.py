"""The shape of the source: sizes of modules and folders, import circles, contracts, names that nothing uses.

Each rule has a list of exceptions, which may only shrink: one that is no longer needed is an error.
ARCHITECTURE.md has a test of its own.
"""

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from tests import tidy

ROOT = Path(__file__).parent.parent

LONG_MODULES = {
    # Each is one compiled counterpart of modules in Python. Parts of it in modules of their own could share C functions
    # and classes only through .pxd files, which declare them all a second time.
    "protocol/kafka/codec/_compiled.pyx",  # reads and writes all messages, with the same steps and numbers
    "protocol/records/_codec.pyx",  # reads, stamps and builds records and batches
    "protocol/records/compaction/_filtering.pyx",  # a hash table of keys, and the filter that looks up each record
}
FULL_FOLDERS: set[str] = set()
CIRCLES: set[frozenset[str]] = set()
WITHOUT_CONTRACT: set[str] = set()
SHARED_NAMES: set[str] = set()
UNCLEAR_NAMES = {
    # fields of the native protocol's explain response
    "protocol/explanation.py: asked",
    "protocol/explanation.py: known_by_heart",
    "protocol/explanation.py: not_asked",
    "protocol/explanation.py: place",
    # Kafka's setting of the same name
    "broker/settings/settings.py: allow_everyone_if_no_acl_found",
}
UNUSED_NAMES = {
    # the status codes of gRPC, complete
    "broker/cluster/etcd/gateway.py: UNAVAILABLE",
    "broker/cluster/etcd/gateway.py: UNIMPLEMENTED",
    # called by the codec's generated source, which builds these names
    "protocol/kafka/codec/reader.py: nullable_copied",
    "protocol/kafka/codec/writer.py: nullable_records",
    # called by click, logging and Spark
    "warmlog/cli/command_groups.py: format_commands",
    "warmlog/cli/serve.py: formatTime",
    "warmlog/pipeline/data_source.py: streamReader",
}
MISSED_BY_JOBS: set[str] = set()


def circles(root: Path) -> Collection[object]:
    return tidy.circles(tidy.imports(root))


RULES: list[tuple[Callable[[Path], Collection[object]], Collection[object]]] = [
    (tidy.long_modules, LONG_MODULES),
    (tidy.full_folders, FULL_FOLDERS),
    (circles, CIRCLES),
    (tidy.without_contract, WITHOUT_CONTRACT),
    (tidy.shared_names, SHARED_NAMES),
    (tidy.unclear_names, UNCLEAR_NAMES),
    (tidy.unused_names, UNUSED_NAMES),
    (tidy.missed_by_jobs, MISSED_BY_JOBS),
]


@pytest.mark.parametrize(("rule", "exceptions"), RULES)
def test_the_source_is_tidy(rule: Callable[[Path], Collection[object]], exceptions: Collection[object]) -> None:
    found = set(rule(ROOT))
    assert found - set(exceptions) == set(), "new; see the rule in tests/tidy.py"
    assert set(exceptions) - found == set(), "no longer needed: remove it from the list of exceptions"


# -- the rules find each kind of fault ---------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small source tree without faults."""
    write(tmp_path, "pyproject.toml", contract("warmlog.broker.log"))
    write(tmp_path, "broker/log/__init__.py", "")
    write(tmp_path, "broker/log/segment.py", "def read():\n    pass\n")
    write(tmp_path, "broker/log/log.py", "from warmlog.broker.log.segment import read\n\nread()\n")
    (tmp_path / "warmlog").mkdir()
    (tmp_path / "warmlog" / "broker").symlink_to("../broker")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def contract(container: str, *, exhaustive: str = "true") -> str:
    return (
        f'[[tool.importlinter.contracts]]\ntype = "layers"\ncontainers = ["{container}"]\nexhaustive = {exhaustive}\n'
    )


def test_a_tidy_tree_has_no_faults(tree: Path) -> None:
    assert [list(rule(tree)) for rule, _ in RULES] == [[]] * len(RULES)


@pytest.mark.parametrize("name", ["long.py", "_long.pyx"])
def test_a_long_module_is_found_once(tree: Path, name: str) -> None:
    write(tree, f"broker/log/{name}", "\n" * tidy.MAX_LINES)
    assert tidy.long_modules(tree) == {}
    write(tree, f"broker/log/{name}", "\n" * (tidy.MAX_LINES + 1))
    assert tidy.long_modules(tree) == {f"broker/log/{name}": tidy.MAX_LINES + 1}


def test_a_full_folder_is_found(tree: Path) -> None:
    for number in range(tidy.MAX_MODULES - 2):
        write(tree, f"broker/log/more{number}.py", "")
    assert tidy.full_folders(tree) == {}
    write(tree, "broker/log/_more.pyx", "")
    assert tidy.full_folders(tree) == {"broker/log": tidy.MAX_MODULES + 1}


BACK = "from warmlog.broker.log.log import x"


@pytest.mark.parametrize(
    "line",
    [
        BACK,
        "from warmlog.broker.log import log",
        "import warmlog.broker.log.log",
        f"def read():\n    {BACK}",
        f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {BACK}",
    ],
)
def test_a_circle_is_found_wherever_the_import_is(tree: Path, line: str) -> None:
    write(tree, "broker/log/segment.py", f"{line}\n")
    assert circles(tree) == {frozenset({"warmlog.broker.log.log", "warmlog.broker.log.segment"})}


def test_a_circle_through_a_third_module_is_found(tree: Path) -> None:
    write(tree, "broker/log/segment.py", "from warmlog.broker.log._scan import walk\n")
    write(tree, "broker/log/_scan.pyx", f"{BACK}\n")
    assert circles(tree) == {
        frozenset({"warmlog.broker.log.log", "warmlog.broker.log.segment", "warmlog.broker.log._scan"})
    }


def test_a_package_without_an_exhaustive_contract_is_found(tree: Path) -> None:
    write(tree, "broker/net/__init__.py", "")
    assert tidy.without_contract(tree) == {"warmlog.broker.net"}
    loose = contract("warmlog.broker.net", exhaustive="false")
    write(tree, "pyproject.toml", contract("warmlog.broker.log") + loose)
    assert tidy.without_contract(tree) == {"warmlog.broker.net"}


@pytest.mark.parametrize(
    "definition",
    [
        "def spare():\n    pass",
        "async def spare():\n    pass",
        "spare = 1",
        "spare: int = 1",
        "class spare:\n    pass",
        "class _Kept:\n    @property\n    def spare(self):\n        pass",
    ],
)
def test_a_name_that_nothing_uses_is_found(tree: Path, definition: str) -> None:
    write(tree, "broker/log/spare_parts.py", f"{definition}\n")
    assert tidy.unused_names(tree) == {"broker/log/spare_parts.py: spare"}
    write(tree, "tests/test_spare_parts.py", "spare\n")
    assert tidy.unused_names(tree) == set()


def test_private_and_registered_names_need_no_user(tree: Path) -> None:
    write(
        tree, "broker/log/parts.py", "def _spare():\n    pass\n\n@command('serve')\ndef started_by_click():\n    pass\n"
    )
    assert tidy.unused_names(tree) == set()


def test_two_classes_of_the_same_name_in_a_package_are_found(tree: Path) -> None:
    write(tree, "broker/log/index/entry.py", "class Entry:\n    pass\n\nEntry()\n")
    write(tree, "broker/net/entry.py", "class Entry:\n    pass\n\nEntry()\n")
    assert tidy.shared_names(tree) == set()
    write(tree, "broker/log/reads/entry.py", "class Entry:\n    pass\n\nclass _Entry:\n    pass\n\nEntry()\n")
    assert tidy.shared_names(tree) == {"broker/log: Entry"}


@pytest.mark.parametrize("name", ["look", "_look_again", "told", "bury", "start_anew"])
def test_a_name_in_a_sense_of_our_own_is_found(tree: Path, name: str) -> None:
    write(
        tree, "broker/log/parts.py", f"def {name}():\n    pass\n\n{name}()\n\ndef look_up():\n    pass\n\nlook_up()\n"
    )
    assert tidy.unclear_names(tree) == {f"broker/log/parts.py: {name}"}
    write(tree, "broker/log/parts.py", "class TakeALook:\n    pass\n\nTakeALook()\n")
    assert tidy.unclear_names(tree) == {"broker/log/parts.py: TakeALook"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("found = 1", "found"),
        ("[one for one in ()]", "one"),
        ("with a as _place: pass", "_place"),
        ("def read(asked): pass", "asked"),
        ("lambda *places: places", "places"),
        ("self.bytes_found += 1", "bytes_found"),
        ("match 1:\n    case int() as room: pass", "room"),
    ],
)
def test_a_value_named_by_such_a_word_is_found(tree: Path, text: str, name: str) -> None:
    write(tree, "broker/log/parts.py", f"{text}\nread(found, asked=one)\n")
    assert tidy.unclear_names(tree) == {f"broker/log/parts.py: {name}"}


def test_a_batch_may_be_one_and_a_replica_be_placed(tree: Path) -> None:
    write(tree, "broker/log/parts.py", "min_one_batch = NOT_FOUND = 1\n\ndef place(replica):\n    pass\n")
    assert tidy.unclear_names(tree) == set()


@pytest.mark.parametrize(
    ("jobs", "count"),
    [
        ({"interop-log": "tests/log", "interop-net": "tests/net"}, None),
        ({"interop-log": "tests/log/test_kills.py"}, None),
        ({"interop-net": "tests/net"}, 0),
        ({"interop-log": "tests --ignore tests/log"}, 0),
        ({"interop-log": "tests/lo"}, 0),
        ({"interop-spare": "tests/log"}, 0),
        ({"interop-all": "tests", "interop-log": "tests/log"}, 2),
        ({"interop-all": "tests --ignore tests/log", "interop-log": "tests/log"}, None),
    ],
)
def test_a_test_that_not_one_job_of_make_interop_collects_is_found(
    tree: Path, jobs: dict[str, str], count: int | None
) -> None:
    write(tree, "tests/log/test_kills.py", f"pytestmark = {tidy.MARK}\n")
    listed = " \\\n\t".join(name for name in jobs if "spare" not in name)
    recipes = [f"{name}: prepared\n\tprepare\n\t$(INTEROP) {words} $(EMPTY_OK)\n" for name, words in jobs.items()]
    write(tree, "Makefile", "\n".join([f"INTEROP_JOBS := {listed}\n", *recipes]))
    assert tidy.missed_by_jobs(tree) == ({} if count is None else {"tests/log/test_kills.py": count})
