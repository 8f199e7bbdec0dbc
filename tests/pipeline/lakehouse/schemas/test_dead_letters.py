"""Records that do not fit a table go to a dead-letter topic, and are accounted for."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.schemas.decoded import (
    OTHER,
    V1,
    audited_with,
    confluent,
    decoded,
    order,
    rows_in,
    table_in,
)
from tests.pipeline.lakehouse.schemas.registries import RegistryServer, avro
from tests.pipeline.lakehouse.tables import Kind, arguments_of, catalog_of, copied, options_of
from tests.pipeline.lakehouse.test_audit import messages, total
from tests.pipeline.lakehouse.test_exactly_once import KilledError, Killer, Watched
from tests.pipeline.lakehouse.test_stream import source
from warmlog.cli.pipeline.audit import audit as audit_command
from warmlog.cli.pipeline.table import table as table_command
from warmlog.cli.share.dead_letters import parsed
from warmlog.client import ConsumedRecord
from warmlog.client.blocking import Client
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.job import TableSettings
from warmlog.pipeline.lakehouse.receipts import all_runs, parse_receipt, runs_of
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.dead_letters import DeadLetterTopic
from warmlog.pipeline.lakehouse.schemas.formats import Formats
from warmlog.pipeline.lakehouse.stream import TableSink
from warmlog.testing import Broker

LETTERS = "dlq.orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.native) as connected:
        with suppress(Exception):
            connected.delete_topic(LETTERS)
        connected.create_topic(LETTERS, partitions=2)
        yield connected


def to_letters(registry: RegistryServer, broker: Broker, **more: Any) -> Formats:
    where = {"dead_letter_topic": LETTERS, "brokers": Brokers(addresses=broker.native), **more}
    return confluent(registry, on_bad_row="dead-letter", **where)


def letters_in(client: Client) -> list[ConsumedRecord]:
    return list(client.consume(LETTERS, "beginning", until_end=True))


def mixed(registry: RegistryServer) -> list[bytes]:
    """Offsets 1, 2 and 4 do not fit."""
    good, other = avro(registry.url, V1, [order(1)]), avro(registry.url, OTHER, [{"id": "x"}])
    return [*good, b"bad", *other, *good, b"", *good]


def test_records_that_do_not_fit_are_dead_letters_and_accounted_for(
    writer: DirectoryWriter, registry: RegistryServer, broker: Broker, client: Client, kind: Kind, tmp_path: Path
) -> None:
    values = mixed(registry)
    writer.segment(values)
    formats = to_letters(registry, broker)
    (receipt,) = decoded(writer, tmp_path, kind, formats)
    assert (receipt.rows, receipt.dead_letters) == (3, {("orders", 0): ((1, 3), (4, 5))})
    assert parse_receipt(receipt.text(), "test") == receipt
    assert rows_in(tmp_path, kind, "offset", "id") == [(0, 1), (3, 1), (5, 1)]
    letters = [parsed(record) for record in letters_in(client)]
    assert [(each.topic, each.partition, each.offset) for each in letters if each is not None] == [
        ("orders", 0, 1),
        ("orders", 0, 2),
        ("orders", 0, 4),
    ]
    assert [each.letter.value for each in letters if each is not None] == [b"bad", values[2], b""]
    assert [each.letter.key for each in letters if each is not None] == [b"k1", b"k2", b"k4"]
    assert letters[1] is not None
    assert letters[1].reason == "schema 2: field id is int32 so far, and string in the schema"
    audit = audited_with(tmp_path, kind, writer, SchemaSources(registry=formats.registry))
    partition = audit.partitions[0]
    assert (audit.findings, total(audit).in_log, partition.dead_letters, partition.empty) == ([], 3, 3, 0)


def test_a_record_that_is_neither_in_the_table_nor_a_dead_letter_is_missing(
    writer: DirectoryWriter, registry: RegistryServer, broker: Broker, client: Client, kind: Kind, tmp_path: Path
) -> None:
    """Its bytes in the log are others since the copy."""
    writer.segment(mixed(registry))
    formats = to_letters(registry, broker)
    decoded(writer, tmp_path, kind, formats)
    for path in writer.directory.iterdir():
        path.unlink()
    writer.next_offset = 0
    good = avro(registry.url, V1, [order(1)])
    writer.segment([*good, b"bad", *good, b"bad", b"", *good])
    audit = audited_with(tmp_path, kind, writer, SchemaSources(registry=formats.registry))
    assert [text.partition(": ")[0] for text in messages(audit)] == ["offset 3 is not as in the log"]


@pytest.mark.interop  # takes many seconds
def test_killed_at_every_step_each_letter_is_there_and_no_row_twice(
    writer: DirectoryWriter, registry: RegistryServer, broker: Broker, client: Client, kind: Kind, tmp_path: Path
) -> None:
    writer.segment(mixed(registry))
    formats = to_letters(registry, broker)
    options, settings = options_of(writer, maxOffsetsPerTrigger=3), TableSettings(formats=formats)
    steps = 0
    while True:
        lake, before = tmp_path / f"{steps}", len(letters_in(client))
        try:
            copied(Watched(table_in(lake, kind, formats), Killer(steps)), options, settings)
        except KilledError:
            copied(table_in(lake, kind, formats), options, settings)
            assert rows_in(lake, kind, "offset") == [(0,), (3,), (5,)], f"step {steps}"
            letters = [parsed(record) for record in letters_in(client)[before:]]
            assert {each.offset for each in letters if each is not None} == {1, 2, 4}, f"step {steps}"
            steps += 3
            continue
        break
    assert steps > 10


def test_a_stream_of_spark_has_dead_letters(
    spark: Any,
    writer: DirectoryWriter,
    registry: RegistryServer,
    broker: Broker,
    client: Client,
    kind: Kind,
    tmp_path: Path,
) -> None:
    writer.segment(mixed(registry))
    where: dict[str, Any] = {"target": str(tmp_path / "delta")}
    if kind == "iceberg":
        where = {"target": "db.orders", **catalog_of(tmp_path)}
    sink = TableSink(
        **where,
        value_format="confluent",
        schema_registry=registry.url,
        on_bad_row="dead-letter",
        dead_letter_topic=LETTERS,
        brokers={"bootstrap": broker.native},
    )
    sink(source(spark.read, writer), 0)
    assert rows_in(tmp_path, kind, "offset") == [(0,), (3,), (5,)]
    letters = [parsed(record) for record in letters_in(client)]
    assert {each.offset for each in letters if each is not None} == {1, 2, 4}
    sources = SchemaSources(registry=confluent(registry).registry)
    audit = audited_with(tmp_path, kind, writer, sources)
    assert (audit.findings, audit.partitions[0].dead_letters) == ([], 3)


def test_the_commands_count_dead_letters(
    registry: RegistryServer, broker: Broker, client: Client, kind: Kind, tmp_path: Path
) -> None:
    topic = f"orders-{kind}"
    client.create_topic(topic)
    client.produce_many(topic, mixed(registry))
    source_of = ["--bootstrap", broker.native, "--schema-registry", registry.url]
    where = arguments_of(tmp_path, kind)
    given = [
        "--value-format",
        "confluent",
        "--on-bad-row",
        "dead-letter",
        "--dead-letter-topic",
        LETTERS,
        "--until-end",
    ]
    done = CliRunner().invoke(table_command, [topic, *where, *source_of, *given], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "committed 3 records of 6 offsets in 1 partition\n3 records became dead letters\n" in done.output
    audit = CliRunner().invoke(audit_command, [topic, *where, *source_of], catch_exceptions=False)
    assert audit.exit_code == 0, audit.output
    head, row, *_ = audit.output.splitlines()
    assert dict(zip(head.split(), row.split(), strict=True))["dead-letters"] == "3"


def test_a_topic_that_cannot_take_letters_is_refused_before_anything_is_copied(
    writer: DirectoryWriter, registry: RegistryServer, broker: Broker, client: Client, tmp_path: Path
) -> None:
    brokers = Brokers(addresses=broker.native)
    with pytest.raises(PipelineError, match="dead-letter topic gone does not exist: create it"):
        DeadLetterTopic(topic="gone", brokers=brokers).check()
    with pytest.raises(PipelineError, match="orders is the topic that is copied: dead letters need another one"):
        decoded(writer, tmp_path, "delta", to_letters(registry, broker, dead_letter_topic="orders"))
    with pytest.raises(PipelineError, match="needs a topic for them: --dead-letter-topic TOPIC"):
        confluent(registry, on_bad_row="dead-letter", brokers=brokers)
    with pytest.raises(PipelineError, match="dead letters need a broker to write them to: --bootstrap H:P"):
        confluent(registry, on_bad_row="dead-letter", dead_letter_topic=LETTERS)
    with pytest.raises(PipelineError, match="--dead-letter-topic is for --on-bad-row dead-letter"):
        confluent(registry, dead_letter_topic=LETTERS)


def test_runs_of_offsets_are_bounded() -> None:
    key = ("orders", 0)
    assert runs_of([1, 2, 5]) == ((1, 3), (5, 6))
    assert all_runs([(key, ((5, 6),)), (key, ((1, 3),))]) == {key: ((1, 3), (5, 6))}
    with pytest.raises(PipelineError, match="200,000 runs of offsets are dead letters"):
        all_runs([(key, runs_of(range(0, 400_000, 2)))])
