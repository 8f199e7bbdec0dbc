"""The wheel of a machine where compiling fails: built without a registry, and served from."""

import email
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.packaging.distribution import INSPECT, SERVE, build_offline, left_out, names_in, quick_compiler, run_unpacked

THEIRS_FIRST = "import broker, protocol, warmlog\n"
OURS_FIRST = "import warmlog.testing, warmlog.protocol, warmlog.broker, broker, protocol\n"
THEIR_PROGRAM = """
from warmlog import Client
from warmlog.testing import Broker
with Broker() as running, Client(running.native) as client:
    client.produce("orders", value=b"one")
    values = [record.value for record in client.consume("orders", start="beginning", until_end=True)]
print(broker.OWNER, protocol.OWNER, values)
"""
THEIR_TEST = """
import broker, protocol
from warmlog import Client

def test_orders(warmlog_broker):
    with Client(warmlog_broker.native) as client:
        assert client.produce("orders", value=broker.OWNER.encode()).offset == 0
    assert protocol.OWNER == "user"
"""

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]  # mypyc takes half a minute on a busy machine
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A wheel from a machine whose compiler fails, and what the build said."""
    return build_offline(tmp_path_factory.mktemp("pure"), CC="false")


def libraries(wheel: Path) -> set[str]:
    return {name for name in names_in(wheel) if name.endswith(".so")}


def test_a_build_without_a_compiler_says_so_in_one_line(built: tuple[Path, str]) -> None:
    wheel, output = built
    (line,) = left_out(output)
    assert "no C compiler" in line
    assert "gcc and python3-dev" in line
    assert libraries(wheel) == set()


def test_without_a_compiler_the_pure_codec_is_used_silently(built: tuple[Path, str]) -> None:
    said = run_unpacked(built[0], "-c", INSPECT)
    compiled, paths = said.stdout.splitlines()
    assert compiled == "False False False"
    assert all(Path(path).is_relative_to(built[0].parent) for path in paths.split())
    assert said.stderr == ""


def test_without_a_compiler_a_broker_serves_all_the_same(built: tuple[Path, str]) -> None:
    assert run_unpacked(built[0], "-c", SERVE).stdout.strip() == "[b'one']"


def test_a_project_may_have_packages_named_broker_and_protocol(built: tuple[Path, str], tmp_path: Path) -> None:
    for name in ("broker", "protocol"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('"""A package of the user\'s."""\n\nOWNER = "user"\n')
    (tmp_path / "test_orders.py").write_text(THEIR_TEST)
    for order in (THEIRS_FIRST, OURS_FIRST):
        assert run_unpacked(built[0], "-c", order + THEIR_PROGRAM, directory=tmp_path).stdout == "user user [b'one']\n"
    tested = run_unpacked(built[0], "-m", "pytest", "-q", "-p", "no:cacheprovider", directory=tmp_path)
    assert "1 passed" in tested.stdout


@needs_compiler
@pytest.mark.interop  # takes minutes
def test_a_build_whose_translators_fail_is_pure(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "mypyc").mkdir(parents=True)
    (broken / "mypyc" / "__init__.py").write_text('raise RuntimeError("first\\nerror: no mypyc here\\nlast")')
    (broken / "Cython").mkdir()
    (broken / "Cython" / "__init__.py").write_text("raise ImportError('no Cython here')")
    wheel, output = build_offline(tmp_path, PYTHONPATH=str(broken))
    lines = left_out(output)
    assert len(lines) == 2
    assert sum("error: no mypyc here" in line for line in lines) == 1
    assert sum("no Cython here" in line for line in lines) == 1
    assert libraries(wheel) == set()


@needs_compiler
@pytest.mark.interop  # the same
def test_a_compiler_that_fails_on_one_module_leaves_out_all_of_mypyc(tmp_path: Path) -> None:
    wheel, output = build_offline(tmp_path, CC=quick_compiler(tmp_path / "cc", refused="*mypyc/*"))
    (line,) = left_out(output)
    assert "the modules that mypyc compiles" in line
    assert "the C compiler failed, see above" in line
    assert "out of memory" in output
    assert run_unpacked(wheel, "-c", INSPECT).stdout.splitlines()[0] == "True False False"
    assert run_unpacked(wheel, "-c", SERVE).stdout.strip() == "[b'one']"


def test_the_wheel_holds_types_license_and_nothing_of_tests(built: tuple[Path, str]) -> None:
    names = names_in(built[0])
    assert {f"{package}/py.typed" for package in ("warmlog", "warmlog/broker", "warmlog/protocol")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    others = {name.split("/")[0] for name in names} - {"warmlog", "pyspark_warmlog"}
    assert others == {name.split("/")[0] for name in names if ".dist-info/" in name}


def test_the_description_is_the_readme_without_links_into_the_repository(built: tuple[Path, str]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    description = str(metadata.get_payload())
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert description.startswith("# warmlog")
    assert "Start: tutorial, all pages" in description
    assert re.findall(r"\]\((?!https?://)", description) == []
