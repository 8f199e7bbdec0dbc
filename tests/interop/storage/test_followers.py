"""Directories of older versions' leaders and followers after `warmlog log repair`: Kafka finds nothing wrong."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from interop.kafka_node import dump
from tests.golden.followers import DIRECTORIES, FIXTURES, INDEXES, OLD_RULE, TOPIC
from tests.interop.storage.judging import files_below, findings
from warmlog.cli.root import root

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of all directories, repaired. Read only."""
    return [repair(tmp_path_factory.mktemp("data"), name) for name in DIRECTORIES]


def repair(data: Path, name: str) -> Path:
    shutil.copytree(FIXTURES / name, data, dirs_exist_ok=True)
    done = CliRunner().invoke(root, ["log", "repair", str(data)])
    assert done.exit_code == 0, done.output
    return data


def index_files(directories: list[Path]) -> Iterator[Path]:
    for directory in directories:
        for suffix in INDEXES:
            (path,) = files_below(directory / f"{TOPIC}-0", suffix)
            yield path


def test_kafka_finds_entries_that_contradict_the_log_in_what_followers_wrote() -> None:
    """Otherwise the test below could not fail."""
    followers = [FIXTURES / name for name in OLD_RULE]
    dumps = dump(["--files", path] for path in index_files(followers) if path.suffix == ".index")
    assert all(said.findings() for said in dumps)


def test_repaired_indexes_pass_kafkas_sanity_check(repaired: list[Path]) -> None:
    paths = list(index_files(repaired))
    dumps = dump(["--index-sanity-check", "--files", path] for path in paths)
    assert findings(dumps) == []
    for path, said in zip(paths, dumps, strict=True):
        assert f"{path} passed sanity check." in said.output


def test_kafka_finds_every_entry_of_repaired_indexes_true_of_the_log(repaired: list[Path]) -> None:
    assert findings(dump(["--files", path] for path in index_files(repaired))) == []


def test_kafka_finds_nothing_wrong_with_the_segments(repaired: list[Path]) -> None:
    logs = [path for directory in repaired for path in files_below(directory / f"{TOPIC}-0", ".log")]
    assert len(logs) == len(DIRECTORIES)
    assert findings(dump(["--deep-iteration", "--files", log] for log in logs)) == []
