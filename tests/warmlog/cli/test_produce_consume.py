import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmlog.testing import Broker

Run = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[bytes]"]

AWKWARD = b"a\r\n\n\xff\xfe\x00\n\tindented\n\xc3\xa4\n"


def test_produced_values_are_consumed_byte_for_byte(run: Run) -> None:
    done = run("produce", "bytes", stdin=AWKWARD)
    assert (done.status, done.out) == (0, b"")
    assert done.err.startswith("5 records stored in bytes, ")
    assert run("consume", "bytes", "--from", "beginning", "--until-end").out == AWKWARD


def test_a_last_line_without_newline_is_a_record(run: Run) -> None:
    run("produce", "unended", "-q", stdin=b"one\ntwo")
    assert run("consume", "unended", "--until-end").out == b"one\ntwo\n"


def test_empty_input_stores_nothing(run: Run) -> None:
    assert run("produce", "nothing").err.startswith("0 records stored")
    assert run("consume", "nothing", "--until-end").out == b""


def test_zero_terminated_records_may_hold_lines(run: Run) -> None:
    run("produce", "zeros", "-z", stdin=b"two\nlines\0more\0")
    assert run("consume", "zeros", "--until-end", "-z").out == b"two\nlines\0more\0"


def test_keys_are_split_off_and_printed_with_the_separator(run: Run) -> None:
    run("produce", "keyed", "--key-separator", ": ", stdin=b"k: v: w\n: no key\n")
    assert run("consume", "keyed", "--until-end", "--key-separator", ": ").out == b"k: v: w\n: no key\n"
    assert run("consume", "keyed", "--until-end", "--print-key").out == b"k\tv: w\n\tno key\n"
    assert run("consume", "keyed", "--until-end").out == b"v: w\nno key\n"


def test_key_headers_and_partition_options_apply_to_every_record(run: Run) -> None:
    run("topic", "create", "labelled", "--partitions", 3)
    run("produce", "labelled", "--key", "k", "-H", "a=1", "-H", "a=2=3", "--partition", 2, stdin=b"x\ny\n")
    forms = run("consume", "labelled", "--until-end", "--json").json()
    assert [(form["partition"], form["offset"], form["key"], form["value"]) for form in forms] == [
        (2, 0, "k", "x"),
        (2, 1, "k", "y"),
    ]
    assert forms[0]["headers"] == [{"key": "a", "value": "1"}, {"key": "a", "value": "2=3"}]


def test_json_round_trip_is_lossless(run: Run) -> None:
    lines = [
        {"key": "k", "value": "v", "headers": [{"key": "h", "value_base64": "/w=="}], "timestamp": 1000},
        {"key_base64": "/wA=", "value": None, "timestamp": 2000, "headers": []},
        {"key": None, "value": "ä\n", "timestamp": 3000, "headers": []},
    ]
    run("produce", "json", "--json", stdin="\n".join(map(json.dumps, lines)).encode())
    first = run("consume", "json", "--until-end", "--json")
    assert [{key: form[key] for key in line} for form, line in zip(first.json(), lines, strict=True)] == lines
    (summary,) = run("produce", "json-again", "--json", stdin=first.out).json()
    assert summary == {
        "topic": "json-again",
        "records": 3,
        "partitions": [{"partition": 0, "records": 3, "first_offset": 0, "last_offset": 2}],
    }
    again = run("consume", "json-again", "--until-end", "--json").json()
    assert again == [form | {"topic": "json-again"} for form in first.json()]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_hold_the_same_records(run: Run, compression: str) -> None:
    topic = f"packed-{compression}"
    run("produce", topic, "--compression", compression, stdin=AWKWARD * 100)
    assert run("consume", topic, "--until-end").out == AWKWARD * 100


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_any_acks_store(run: Run, acks: str) -> None:
    run("topic", "create", f"acks-{acks}")
    assert run("produce", f"acks-{acks}", "--acks", acks, stdin=b"x\n").status == 0
    assert run("consume", f"acks-{acks}", "--from", "beginning", "--count", 1).out == b"x\n"


def test_a_start_is_an_offset_a_time_or_an_end(run: Run) -> None:
    lines = [{"value": str(number), "timestamp": 1_700_000_000_000 + 1000 * number} for number in range(10)]
    run("produce", "placed", "--json", stdin="\n".join(map(json.dumps, lines)).encode())

    def first(start: str) -> bytes:
        return bytes(run("consume", "placed", "--from", start, "--until-end", "--count", 1).out)

    assert first("beginning") == b"0\n"
    assert first("7") == b"7\n"
    assert first("2023-11-14T22:13:24Z") == b"4\n"
    assert first("2023-11-14T22:13:23.001Z") == b"4\n"
    assert first("2023-11-15T00:13:24+02:00") == b"4\n"
    assert first("end") == first("10") == first("2030-01-01") == b""


def test_count_stops_within_a_batch(run: Run) -> None:
    run("produce", "counted", stdin=b"a\nb\nc\n")
    assert run("consume", "counted", "--from", "beginning", "--count", 2).out == b"a\nb\n"
    assert run("consume", "counted", "--from", "beginning", "--count", 0).out == b""


def test_only_the_given_partitions_are_read(run: Run) -> None:
    run("topic", "create", "parted", "--partitions", 3)
    for partition in range(3):
        run("produce", "parted", "--partition", partition, stdin=b"%d\n" % partition)
    assert sorted(run("consume", "parted", "--until-end").out.split()) == [b"0", b"1", b"2"]
    assert run("consume", "parted", "--until-end", "--partition", 1).out == b"1\n"
    both = run("consume", "parted", "--until-end", "--partition", 0, "--partition", 2).out
    assert sorted(both.split()) == [b"0", b"2"]


@pytest.mark.parametrize(
    ("stdin", "options", "message"),
    [
        (b"a=1\nbroken\nc=2\n", ("--key-separator", "="), "line 2: no key separator '=' in the line"),
        (b'{"value": "a"}\n{"vlaue": "b"}\n', ("--json",), "line 2: "),
    ],
)
def test_records_before_an_invalid_line_are_stored_and_counted(
    run: Run, stdin: bytes, options: tuple[str, ...], message: str
) -> None:
    topic = f"broken{options[0]}"
    done = run("produce", topic, *options, stdin=stdin)
    assert done.status == 1
    assert message in done.err
    assert done.err.endswith(f"(at least 1 record stored in {topic})\n")
    assert len(run("consume", topic, "--until-end").out.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("consume", "missing", "--until-end"), "missing"),
        (("consume", "present", "--from", "5"), "offset 5 is out of range"),
        (("consume", "present", "--partition", "3"), "partitions 0 to 0, not 3"),
        (("produce", "present", "--partition", "3"), "partitions 0 to 0, not 3"),
    ],
)
def test_a_missing_object_is_reported_in_one_line(run: Run, command: tuple[str, ...], message: str) -> None:
    run("topic", "create", "present", "--if-not-exists")
    done = run(*command, stdin=b"x\n")
    assert done.status == 1
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == b""


@pytest.mark.parametrize(
    "command",
    [
        ("consume", "t", "--from", "yesterday"),
        ("consume", "t", "--from", "-1"),
        ("consume", "t", "--count", "-1"),
        ("consume", "t", "--json", "--print-key"),
        ("consume", "t", "--group", "g", "--partition", "0"),
        ("produce", "t", "--acks", "2"),
        ("produce", "t", "--json", "--key-separator", ":"),
        ("produce", "t", "--key-separator", ""),
        ("produce", "t", "--header", "nonsense"),
        ("produce",),
    ],
)
def test_conflicting_options_are_rejected(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command)
    assert done.status == 2
    assert done.err.count("\n") == 1


def test_each_line_is_delivered_as_it_is_typed(start: Start, run: Run) -> None:
    run("topic", "create", "followed")
    reader = start("consume", "followed", "--from", "beginning", "--count", 2)
    writer = start("produce", "followed")
    assert reader.stdout is not None
    assert writer.stdin is not None
    for line in (b"first\n", b"second\n"):
        writer.stdin.write(line)
        writer.stdin.flush()
        assert reader.stdout.readline() == line
    assert reader.wait() == 0
    _, errors = writer.communicate()
    assert errors.startswith(b"2 records stored in followed")


def test_ctrl_c_ends_a_reader_quietly(start: Start, run: Run) -> None:
    run("produce", "watched", stdin=b"x\n")
    reader = start("consume", "watched", "--from", "beginning")
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"x\n"
    reader.send_signal(signal.SIGINT)
    assert reader.communicate() == (b"", b"")
    assert reader.returncode == 130


def test_a_reader_says_that_its_broker_is_gone_and_back(start: Start, run: Run, tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        address = broker.native
        run("produce", "awaited", "--native", address, stdin=b"x\n")
        reader = start("consume", "awaited", "--from", "beginning", "--count", 2, "--native", address)
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"x\n"
    line = reader.stderr.readline().decode()
    assert line == f"warmlog: cannot connect to {address}: Connection refused; retrying\n"
    with Broker(data_dir=tmp_path / "data", native=address):
        run("produce", "awaited", "--native", address, stdin=b"y\n")
        assert reader.stdout.readline() == b"y\n"
        assert reader.wait() == 0
    assert re.fullmatch(rb"warmlog: connected again after [0-9]+ s\n", reader.stderr.read())


def test_ctrl_c_ends_a_writer_with_what_is_known_to_be_stored(start: Start, run: Run) -> None:
    run("topic", "create", "typed")
    reader = start("consume", "typed", "--from", "beginning", "--count", 1)
    writer = start("produce", "typed")
    assert writer.stdin is not None
    writer.stdin.write(b"x\n")
    writer.stdin.flush()
    assert reader.wait() == 0
    writer.send_signal(signal.SIGINT)
    assert writer.wait() == 130
    assert writer.stderr is not None
    assert writer.stderr.read() in {b"at least 1 record stored in typed\n", b"at least 0 records stored in typed\n"}


def test_ctrl_c_in_a_long_input_counts_the_records_that_are_stored(start: Start, run: Run) -> None:
    """As in `yes | warmlog produce endless`. The client holds at most 32 MiB that are not acknowledged."""
    writer = start("produce", "endless")
    assert writer.stdin is not None
    assert writer.stderr is not None
    line = b"x" * 9999 + b"\n"
    for _ in range(5000):
        writer.stdin.write(line)
    writer.send_signal(signal.SIGINT)
    assert writer.wait() == 130
    told = writer.stderr.read()
    known = re.fullmatch(rb"at least ([0-9,]+) records stored in endless\n", told)
    assert known is not None, told
    (partition,) = run("topic", "describe", "endless", "--json").json()[0]["partitions"]
    assert 1000 < int(known[1].replace(b",", b"")) <= partition["log_end_offset"]


def test_a_closed_pipe_ends_the_command_quietly(start: Start, run: Run) -> None:
    """`warmlog consume piped --from beginning | head -1`."""
    run("produce", "piped", stdin=b"line\n" * 100_000)
    reader = start("consume", "piped", "--from", "beginning")
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"line\n"
    reader.stdout.close()
    assert reader.wait() == 141
    assert reader.stderr is not None
    assert reader.stderr.read() == b""


def test_a_topic_is_completed_by_the_broker(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topic", "create", "completed-one", "completed-two", "other")
    for variable, text in (
        ("_WARMLOG_COMPLETE", "bash_complete"),
        ("COMP_WORDS", "warmlog consume completed"),
        ("COMP_CWORD", "2"),
    ):
        monkeypatch.setenv(variable, text)
    assert run().out.split() == [b"plain,completed-one", b"plain,completed-two"]
    monkeypatch.setenv("WARMLOG_NATIVE", "127.0.0.1:1")
    assert run().out.strip() == b""


def test_a_real_pipe_through_the_real_command_keeps_every_byte(start: Start) -> None:
    data = os.urandom(1 << 20) + b"\n"
    writer = start("produce", "random")
    _, errors = writer.communicate(data)
    assert writer.returncode == 0, errors
    reader = start("consume", "random", "--from", "beginning", "--until-end")
    out, _ = reader.communicate()
    assert out == data
