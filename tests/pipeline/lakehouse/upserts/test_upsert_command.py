"""`warmlog pipeline table --upsert`, and the other commands with its tables."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.pipeline.lakehouse.tables import KINDS, Kind, arguments_of, open_in
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, model_in, upserted
from warmlog.cli.root import root
from warmlog.client.blocking import Client
from warmlog.testing import Broker


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["pipeline", *arguments])


def produce(client: Client, topic: str, pairs: Sequence[tuple[bytes, bytes | None]]) -> None:
    for key, value in pairs:
        client.produce(topic, key=key, value=value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_becomes_a_table_and_the_table_a_topic(kind: Kind, tmp_path: Path) -> None:
    """From a broker, also after maintenance."""
    target = arguments_of(tmp_path, kind)
    with Broker(data_dir=tmp_path / "data") as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=1)
        source = ["--bootstrap", broker.native]
        produce(client, "orders", [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1")])
        first = run("table", "orders", *target, "--upsert", "--until-end", "--json", *source)
        assert json.loads(first.stdout)["upsert"] == {"inserted": 3, "updated": 0, "deleted": 0, "elsewhere": 0}
        produce(client, "orders", [(b"b", None), (b"c", b"2")])
        second = run("table", "orders", *target, "--upsert", "--until-end", *source)
        assert "0 rows inserted, 1 row updated, 1 row deleted" in second.stdout, second.output
        assert run("table", "maintain", *target).exit_code == 0
        audit = run("audit", "orders", *target, *source)
        assert "1 partition, 2 rows: nothing wrong" in audit.stdout, audit.output
        where = ["--topic", "orders", "--native", broker.native]
        replay = run("replay", "--table", *target, *where, "--to-topic", "again", "--keep-partitions")
        assert "2 records sent to again" in replay.stdout, replay.output
        again = [(record.key, record.value) for record in client.consume("again", until_end=True)]
        assert again == [(b"a", b"2"), (b"c", b"2")]
    assert model_in(tmp_path, kind) == {(0, b"a"): (2, b"2"), (0, b"c"): (5, b"2")}


def test_what_cannot_be_upserted_is_one_line(tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    common = ["table", "orders", *arguments_of(tmp_path, "delta"), "--path", str(tmp_path / "data"), "--until-end"]
    refusals = {
        ("--upsert", "-o", "columns=partition,offset,key"): "upserts need the columns key and value",
        ("--upsert", "--on-bad-row", "null"): "--on-bad-row is for keys or values that are decoded",
    }
    for options, message in refusals.items():
        done = run(*common, *options)
        assert (done.exit_code, message in done.stderr, done.stderr.count("\n")) == (1, True, 1), done.output
    upserted(open_in(tmp_path, "delta"), writer)
    appended = run(*common)
    assert (appended.exit_code, "has one row for each key: copy to it with --upsert" in appended.stderr) == (1, True)
    spark = run("audit", "orders", str(tmp_path / "delta"), "--path", str(tmp_path / "data"), "--engine", "spark")
    assert (spark.exit_code, "its audit runs in this process only" in spark.stderr) == (1, True), spark.output
    state = run("audit", "orders", str(tmp_path / "delta"), "--path", str(tmp_path / "data"), "--state", "state.json")
    assert (state.exit_code, "--state is for tables of appended rows" in state.stderr) == (1, True), state.output
