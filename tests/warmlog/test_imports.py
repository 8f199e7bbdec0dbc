"""What importing warmlog costs: nothing that is not asked for."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import warmlog
from warmlog.cli.serve import importing

LOADED = "import sys; print(*sorted(name for name in sys.modules if (name + '.').startswith({})))"


def loaded(statement: str, *of: str) -> list[str]:
    code = f"{statement}; {LOADED.format(tuple(f'{name}.' for name in of))}"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_importing_warmlog_loads_nothing_else() -> None:
    heavy = ("anyio", "trio", "asyncio", "msgspec", "socket", "ssl", "warmlog")
    assert loaded("import warmlog", *heavy) == [
        "warmlog",
        "warmlog.compilation",
        "warmlog.protocol",
        "warmlog.protocol.version",
    ]


def test_the_client_loads_no_broker_and_no_event_loop_until_it_runs() -> None:
    assert not loaded("from warmlog import connect", "trio", "warmlog.broker", "prometheus_client", "h11", "click")


def test_the_test_broker_does_not_load_the_client() -> None:
    assert not [name for name in loaded("import warmlog.testing", "warmlog", "anyio") if "client" in name]


def test_the_broker_is_ready_without_what_only_later_requests_need(tmp_path: Path) -> None:
    later = {
        "argparse",
        "crc32c",
        "difflib",
        "email",
        "h11",
        "http",
        "importlib.metadata",
        "prometheus_client",
        "tomllib",
    }
    listeners = [f"--{name}=127.0.0.1:0" for name in ("kafka", "native", "http")]
    command = [sys.executable, "-X", "importtime", "-m", "warmlog", "serve", f"--data-dir={tmp_path}/data", *listeners]
    report = tmp_path / "stderr"  # one line for each import, as it happens
    with (
        report.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as broker,
    ):
        assert broker.stdout is not None
        ready = any(line.startswith("ready ") for line in broker.stdout)
        broker.terminate()
    imported = {line.rpartition("|")[2].strip() for line in report.read_text().splitlines()}
    assert ready
    assert "warmlog.broker.app" in imported
    assert not imported & later


def test_imports_of_the_broker_cause_no_collections_and_are_exempt_from_later_ones() -> None:
    frozen = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    gc.unfreeze()


@pytest.mark.parametrize("name", warmlog.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(warmlog, name) is not None
    assert name in dir(warmlog)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Producer"):
        warmlog.Producer  # noqa: B018
