"""`warmlog log explain`: over directories of warmlog and Kafka, and through a broker."""

import json
import shutil
from pathlib import Path

import pytest

from tests.broker.log.io.eviction import evict_files, needs_eviction
from tests.golden.partitions import FIXTURES
from tests.warmlog.cli.conftest import Run
from tests.warmlog.cli.log.made_directory import START_MS, opened, tree
from warmlog import Client
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.reads.explain import LogSnapshot
from warmlog.inspect import log_snapshot
from warmlog.inspect.log_snapshot import read_log_snapshot
from warmlog.protocol.records.builder import build_batch
from warmlog.testing import Broker

PLAIN = FIXTURES / "clean" / "plain-0"
LARGE_ENTRIES = 7168


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A stopped partition with an index of 14 full pages."""
    log = opened(tmp_path, "words", 0, config=LogConfig(index_interval_bytes=0))
    log.appends.append(b"".join([build_batch([(START_MS, None, b"", ())])] * (LARGE_ENTRIES + 1)))
    log.close()
    return tmp_path / "words-0"


def test_the_table_shows_the_plain_search_too(run: Run, words: Path) -> None:
    done = run("log", "explain", words, "--offset", LARGE_ENTRIES, "--search", "plain", "--index-interval-bytes", 0)
    assert (done.status, done.err) == (0, "")
    lines = done.out.decode().splitlines()
    assert lines[0] == "words-0, offset 7168; log start offset 0, log end offset 7169"
    assert lines[1].startswith("segment 00000000000000000000, active: offsets 0 up to 7169, ")
    assert lines[3].split() == ["step", "search", "section", "pages-touched", "not-resident", "faults", "found"]
    warm, plain, scan, batch = (line.split() for line in lines[4:8])
    assert warm[:10] == ["offset", "index", "warm", "warm", "11", "12", "13", "none", "0", "entry"]
    assert plain[:10] == ["offset", "index", "plain", "0", "7", "10", "12", "13", "none", "0"]
    assert scan[0] == "scan"
    assert batch[-4:] == ["offsets", "7168", "to", "7168"]
    assert lines[9] == "major faults expected: 0 (plain search: 0)"


def test_pages_that_are_not_resident_stay_so_and_are_reported_again(run: Run, words: Path) -> None:
    needs_eviction(words.parent)
    evict_files(words)
    command = ("log", "explain", words, "--offset", LARGE_ENTRIES, "--search", "plain")
    first, again = run(*command).out.decode(), run(*command).out.decode()
    assert first == again
    assert "major faults expected: 3 (plain search: 5)" in first
    assert "pages of the log to read from disk: 1 for the scan, 1 for the batch" in first
    assert "warmlog.gate" in first


def test_json_for_scripts(run: Run, words: Path) -> None:
    (found,) = run("log", "explain", words, "--offset", LARGE_ENTRIES, "--search", "plain", "--json").json()
    assert [lookup["pages"] for lookup in found["lookups"]] == [[11, 12, 13], [0, 7, 10, 12, 13]]
    assert found["segment"]["active"] is True
    assert found["asked"] in {"cachestat", "mincore"}
    assert found["batch"]["place"]["pages"][0]["count"] == 1


@pytest.mark.parametrize("time", ["1700000000000", "2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00"])
def test_times_are_accepted_in_several_formats(run: Run, words: Path, time: str) -> None:
    (found,) = run("log", "explain", words, "--time", time, "--json").json()
    assert (found["offset"], found["timestamp"]) == (0, START_MS)
    text = run("log", "explain", words, "--time", time).out.decode()
    assert "offset 0 of 2023-11-14T22:13:20.000Z" in text
    assert "time index" in text


def test_directories_of_kafka_are_explained_and_not_changed(run: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(PLAIN, tmp_path / "plain-0")
    before = tree(copy)
    (found,) = run("log", "explain", copy, "--offset", 60, "--json").json()
    assert (found["segment"]["base_offset"], found["offset"], found["log_end_offset"]) == (0, 60, 204)
    assert found["batch"]["place"]["position"] == 4723
    assert run("log", "explain", copy, "--offset", 204).out.decode().splitlines()[0].endswith("log end offset 204")
    assert tree(copy) == before


@pytest.mark.parametrize("damage", ["missing", "short", "padded"])
def test_an_invalid_index_is_reported_with_its_rebuild(run: Run, tmp_path: Path, damage: str) -> None:
    copy = shutil.copytree(PLAIN, tmp_path / "plain-0")
    index = copy / f"{0:020}.index"
    if damage == "missing":
        index.unlink()
    else:
        content = index.read_bytes()
        index.write_bytes(content[:-3] if damage == "short" else content + bytes(800))
    done = run("log", "explain", copy, "--offset", 60)
    assert done.status == 0
    text = done.out.decode()
    assert "its indexes are invalid" in text
    assert "a broker rebuilds them from 7.9 KiB of log at the first fetch" in text
    assert "offset index" not in text
    assert "4,723 bytes from position 0" in text


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["DIR", "--offset", "7170"], 1, "offset 7170 is outside the log, which holds 0 to 7169"),
        (["DIR", "--time", "2030-01-01T00:00:00Z"], 1, "whose records have times from 2023-11-14T22:13:20.000Z"),
        (["DIR"], 2, "--offset N or --time T"),
        (["DIR", "--offset", "1", "--time", "1"], 2, "--offset N or --time T"),
        (["DIR", "--offset", "-1"], 2, "-1"),
        (["DIR", "--time", "yesterday"], 2, "'yesterday' is neither a time"),
        (["DIR", "--time", "1960-01-01"], 2, "out of the range of record timestamps"),
        (["DIR", "--offset", "1", "--search", "fast"], 2, "fast"),
        (["nowhere", "--offset", "1"], 2, "no such directory; for a topic of a broker, give TOPIC PARTITION"),
        (["FILE", "--offset", "1"], 2, "not a directory"),
        (["EMPTY", "--offset", "1"], 2, "not the directory of a partition"),
        (["INDEXES", "--offset", "1"], 2, "no segments"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    run: Run, words: Path, arguments: list[str], status: int, told: str
) -> None:
    indexes = words.parent / "indexes-0"
    indexes.mkdir()
    (indexes / f"{0:020}.index").touch()
    (words.parent / "empty").mkdir()
    (words.parent / "file").touch()
    places = {"DIR": words, "FILE": words.parent / "file", "EMPTY": words.parent / "empty", "INDEXES": indexes}
    done = run("log", "explain", *[places.get(argument, argument) for argument in arguments])
    assert (done.status, done.out) == (status, b"")
    assert len(done.err.splitlines()) == 1
    assert told in done.err


def test_explaining_starts_over_when_a_broker_removes_a_segment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention or compaction removes a segment while the log is read."""
    log = opened(tmp_path, "words", 0)
    for _ in range(3):
        log.appends.append(build_batch([(START_MS, None, b"word", ())]))
        log.rolls.roll()
    log.close()
    removed: list[LogSnapshot] = []

    def take_and_remove(directory: Path, *, index_interval_bytes: int) -> LogSnapshot:
        snapshot = read_log_snapshot(directory, index_interval_bytes=index_interval_bytes)
        if not removed:
            for path in directory.glob(f"{0:020}.*"):
                path.unlink()
        removed.append(snapshot)
        return snapshot

    monkeypatch.setattr(log_snapshot, "read_log_snapshot", take_and_remove)
    done = run("log", "explain", tmp_path / "words-0", "--time", START_MS)
    assert (done.status, done.err) == (0, "")
    assert done.out.decode().startswith("words-0, offset 1 of ")
    assert len(removed) == 2


def test_through_a_broker_and_beside_it(run: Run, broker: Broker) -> None:
    with Client(broker.native) as client:
        client.create_topic("told", configs={"index.interval.bytes": "100"})
        for number in range(20):
            client.produce("told", value=b"%d" % number, timestamp=START_MS + number)
        assert client.explain("told", 0, offset=3).offset == 3
    (found,) = run("log", "explain", "told", 0, "--offset", 7, "--json").json()
    assert (found["offset"], found["log_end_offset"], found["segment"]["active"]) == (7, 20, True)
    directory = Path(broker.data_dir) / "told-0"
    (offline,) = run("log", "explain", directory, "--offset", 7, "--json").json()
    assert offline["batch"] == found["batch"]
    assert offline["lookups"] == found["lookups"]
    text = run("log", "explain", "told", 0, "--offset", 7).out.decode()
    assert text.startswith("told-0, offset 7; log start offset 0, log end offset 20\n")
    refused = run("log", "explain", "told", 0, "--offset", 21)
    assert (refused.status, refused.err) == (1, "warmlog: offset 21 is outside the log, which holds 0 to 20\n")
    assert run("log", "explain", "untold", 0, "--offset", 1).status == 1


def test_the_json_of_both_has_the_same_fields(run: Run, broker: Broker, words: Path) -> None:
    with Client(broker.native) as client:
        client.produce("fields", value=b"v")
    online, offline = (
        json.loads(run("log", "explain", *place, "--offset", 0, "--json").out) for place in (("fields", 0), (words,))
    )
    assert online.keys() == offline.keys()
