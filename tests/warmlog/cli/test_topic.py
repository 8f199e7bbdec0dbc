from collections.abc import Callable
from typing import Any

import pytest

from warmlog.cli.topic import description_json, show_topic
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.response import PartitionDescription, TopicDescription

Run = Callable[..., Any]


def test_a_topic_is_created_listed_and_deleted(run: Run) -> None:
    assert run("topic", "create", "made", "--partitions", 3).out == b"made created: 3 partitions\n"
    rows = [line.split() for line in run("topic", "list").out.splitlines()]
    assert [b"made", b"3"] in [row[:2] for row in rows]
    assert run("topic", "delete", "made").out == b"made deleted\n"
    assert b"made" not in run("topic", "list").out


def test_json_is_one_object_per_topic(run: Run) -> None:
    created = run("topic", "create", "json-a", "json-b", "--json").json()
    assert [(form["name"], form["partitions"], form["created"]) for form in created] == [
        ("json-a", 1, True),
        ("json-b", 1, True),
    ]
    listed = {form["name"]: form for form in run("topic", "list", "--json").json()}
    assert listed["json-a"] == {"name": "json-a", "topic_id": created[0]["topic_id"], "partitions": 1}
    assert run("topic", "delete", "json-a", "json-b", "--json").json() == [
        {"name": "json-a", "deleted": True},
        {"name": "json-b", "deleted": True},
    ]


def test_an_existing_topic_is_an_error_without_if_not_exists(run: Run) -> None:
    run("topic", "create", "twice", "--partitions", 2)
    refused = run("topic", "create", "twice")
    assert (refused.status, refused.out) == (1, b"")
    assert "twice" in refused.err
    assert refused.err.count("\n") == 1
    assert run("topic", "create", "twice", "--if-not-exists").out == b"twice already exists: 2 partitions\n"
    assert run("topic", "create", "twice", "--if-not-exists", "--json").json()[0]["created"] is False


def test_a_missing_topic_is_an_error_without_if_exists(run: Run) -> None:
    assert run("topic", "delete", "nowhere").status == 1
    assert run("topic", "delete", "nowhere", "--if-exists").out == b"nowhere does not exist\n"
    for command in (("describe", "nowhere"), ("alter", "nowhere", "--partitions", 2)):
        refused = run("topic", *command)
        assert refused.status == 1
        assert refused.err.count("\n") == 1
        assert "nowhere" in refused.err


def test_describe_shows_offsets_segments_and_settings(run: Run) -> None:
    run("topic", "create", "shown", "--config", "segment.bytes=1000")
    run("produce", "shown", "--batch-bytes", 500, stdin=b"x" * 400 + b"\n" + b"y" * 400 + b"\n" + b"z" * 400 + b"\n")
    lines = run("topic", "describe", "shown").out.decode().splitlines()
    assert lines[0].startswith("shown: 1 partition, 3 records, ")
    assert "segment.bytes  1000   topic" in lines
    titles = next(line for line in lines if line.startswith("partition  start"))
    partition = lines[lines.index(titles) + 1].split()
    assert partition[:5] == ["0", "0", "3", "3", "3"]
    assert sum(line.endswith("active") for line in lines) == 1
    assert len(lines) > lines.index(titles) + 5


def test_describe_in_json_has_all_fields(run: Run) -> None:
    run("topic", "create", "told", "--partitions", 2)
    (form,) = run("topic", "describe", "told", "--json").json()
    assert form["name"] == "told"
    assert {config["source"] for config in form["configs"]} == {"default"}
    assert [part["partition"] for part in form["partitions"]] == [0, 1]
    (segment,) = form["partitions"][0]["segments"]
    assert (segment["base_offset"], segment["next_offset"], segment["active"]) == (0, 0, True)


def test_describe_shows_the_flushed_offset(run: Run) -> None:
    for name, flush_messages, flushed in (("synced", 1, 3), ("late", 2, 2)):
        run("topic", "create", name, "--config", f"flush.messages={flush_messages}")
        for value in (b"x", b"y", b"z"):
            run("produce", name, stdin=value + b"\n")
        (form,) = run("topic", "describe", name, "--json").json()
        (partition,) = form["partitions"]
        assert (partition["flushed_offset"], partition["log_end_offset"], partition["failure"]) == (flushed, 3, None)
        lines = run("topic", "describe", name).out.decode().splitlines()
        titles = next(line for line in lines if line.startswith("partition  start"))
        cell = lines[lines.index(titles) + 1][titles.index("flushed") : titles.index("flushed") + len("flushed")]
        assert cell.split() == [str(flushed)]


def test_a_partition_that_rejects_appends_is_shown_with_its_offsets(capsys: pytest.CaptureFixture[str]) -> None:
    partition = PartitionDescription(
        partition=0, leader=1, leader_epoch=2, log_start_offset=0, high_watermark=7, log_end_offset=9, flushed_offset=7,
        size=900, segments=(), error=ErrorCode.KAFKA_STORAGE_ERROR, message="the log rejects appends: a reason",
    )  # fmt: skip
    topic = TopicDescription(name="t", topic_id="id", partitions=(partition,))
    show_topic(topic, all_configs=False)
    lines = capsys.readouterr().out.splitlines()
    assert "partition 0: the log rejects appends: a reason" in lines
    assert any(line.split()[:6] == ["0", "0", "9", "9", "7", "7"] for line in lines)
    assert description_json(topic)["partitions"][0]["failure"] == "the log rejects appends: a reason"


def test_settings_are_changed_and_reset(run: Run) -> None:
    run("topic", "create", "changed", "--config", "segment.bytes=1000")

    def own_settings() -> dict[str, str]:
        (form,) = run("topic", "describe", "changed", "--json").json()
        return {config["name"]: config["value"] for config in form["configs"] if config["source"] == "topic"}

    done = run(
        "topic", "alter", "changed", "--config", "flush.messages=5", "--reset", "segment.bytes", "--partitions", 2
    )
    assert done.out == b"changed altered\n"
    assert own_settings() == {"flush.messages": "5"}
    (form,) = run("topic", "alter", "changed", "--reset", "flush.messages", "--json").json()
    assert form == {"name": "changed", "partitions": None, "configs": {"flush.messages": None}}
    assert own_settings() == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "a b"),
        ("create", "fine", "--config", "segment.bites=1"),
        ("create", "fine", "--config", "segment.bytes=few"),
    ],
)
def test_an_error_of_the_broker_is_reported_in_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    refused = run("topic", *arguments)
    assert refused.status == 1
    assert refused.err.count("\n") == 1
    assert refused.out == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ("create",),
        ("create", "fine", "--partitions", "0"),
        ("create", "fine", "--config", "nonsense"),
        ("alter", "fine"),
        ("list", "--native", "nonsense:x"),
    ],
)
def test_invalid_arguments_are_rejected_without_a_broker(run: Run, arguments: tuple[str, ...]) -> None:
    refused = run("topic", *arguments)
    assert refused.status == 2
    assert refused.err.count("\n") == 1


def test_an_unreachable_broker_is_reported_in_one_line(run: Run) -> None:
    refused = run("topic", "list", "--native", "127.0.0.1:1")
    assert refused.status == 1
    assert refused.err == "warmlog: cannot connect to 127.0.0.1:1: Connection refused\n"


def test_topics_are_listed_with_their_sizes(run: Run) -> None:
    run("topic", "create", "sized", "--partitions", 2)
    run("produce", "sized", stdin=b"x\n" * 1234)
    (row,) = [line.split() for line in run("topic", "list", "--sizes").out.splitlines() if line.startswith(b"sized ")]
    assert row[:3] == [b"sized", b"2", b"1,234"]
    (form,) = [form for form in run("topic", "list", "--sizes", "--json").json() if form["name"] == "sized"]
    assert (form["partitions"], form["records"]) == (2, 1234)
    assert form["bytes"] > 1234
