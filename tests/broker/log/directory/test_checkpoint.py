from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.directory import checkpoint
from warmlog.broker.log.errors import CheckpointError
from warmlog.broker.log.io.disk import Disk

DISK = Disk()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some-checkpoint"


def test_offsets_are_written_as_kafka_writes_them(path: Path) -> None:
    checkpoint.write_offsets(DISK, str(path), {("words", 1): 994, ("words", 0): 1200})
    assert path.read_text() == "0\n2\nwords 0 1200\nwords 1 994\n"


def test_epochs_are_written_as_kafka_writes_them(path: Path) -> None:
    checkpoint.write_epochs(DISK, str(path), [(0, 0), (3, 17)])
    assert path.read_text() == "0\n2\n0 0\n3 17\n"


def test_a_topic_id_is_written_as_kafka_writes_it(path: Path) -> None:
    topic_id = uuid4()
    checkpoint.write_topic_id(DISK, str(path), topic_id, sync=False)
    version, text = path.read_text().split("\n")
    assert version == "version: 0"
    assert text.startswith("topic_id: ")
    assert checkpoint.read_topic_id(DISK, str(path)) == topic_id


def test_the_clean_marker_is_kafkas_json(path: Path) -> None:
    checkpoint.write_clean_marker(DISK, str(path), 17)
    assert path.read_text() == '{"version":0,"brokerEpoch":17}'
    assert checkpoint.read_clean_marker(DISK, str(path)) == 17


offsets = st.dictionaries(
    st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 1 << 20)),
    st.integers(0, (1 << 63) - 1),
    max_size=20,
)


@given(offsets)
def test_offsets_go_both_ways(tmp_path_factory: pytest.TempPathFactory, found: dict[tuple[str, int], int]) -> None:
    path = str(tmp_path_factory.getbasetemp() / "both-ways")
    checkpoint.write_offsets(DISK, path, found, sync=False)
    assert checkpoint.read_offsets(DISK, path) == found


def test_what_is_not_there_is_empty(path: Path) -> None:
    assert checkpoint.read_offsets(DISK, str(path)) == {}
    assert checkpoint.read_epochs(DISK, str(path)) == []
    assert checkpoint.read_topic_id(DISK, str(path)) is None
    assert checkpoint.read_clean_marker(DISK, str(path)) is None


@pytest.mark.parametrize("text", ["", "0\n"])
def test_a_file_that_was_never_filled_is_empty(path: Path, text: str) -> None:
    path.write_text(text)
    assert checkpoint.read_offsets(DISK, str(path)) == {}


@pytest.mark.parametrize(
    "text",
    [
        "1\n0\n",
        "x\n0\n",
        "0\nx\n",
        "0\n2\nwords 0 1\n",
        "0\n0\nwords 0 1\n",
        "0\n1\nwords 0\n",
        "0\n1\nwords zero 1\n",
        "0\n1\nwords 0 99999999999999999999\n",
        "0\n1\nwords 0 \u0663\n",
    ],
)
def test_a_malformed_checkpoint_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(CheckpointError):
        checkpoint.read_offsets(DISK, str(path))


def test_what_is_not_text_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(CheckpointError):
        checkpoint.read_epochs(DISK, str(path))


@pytest.mark.parametrize("line", ["1", "1 2 3", "a 1"])
def test_a_malformed_epoch_line_is_refused(path: Path, line: str) -> None:
    path.write_text(f"0\n1\n{line}\n")
    with pytest.raises(CheckpointError):
        checkpoint.read_epochs(DISK, str(path))


@pytest.mark.parametrize(
    "text", ["", "version: 0\n", "version: -1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", "version: 0\ntopic_id: !"]
)
def test_a_malformed_partition_metadata_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(CheckpointError):
        checkpoint.read_topic_id(DISK, str(path))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version":0,"brokerEpoch":"x"}', "not json"])
def test_a_marker_that_says_nothing_is_a_marker_nonetheless(path: Path, text: str) -> None:
    path.write_text(text)
    assert checkpoint.read_clean_marker(DISK, str(path)) == checkpoint.UNKNOWN_BROKER_EPOCH
