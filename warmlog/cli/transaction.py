"""`warmlog transaction`: list, describe and abort transactions; find hanging ones."""

import time
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.options import complete_topics, json_option, native_option
from warmlog.cli.output import Column, iso_time, print_json, print_line, print_table
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.client import OpenTransaction
    from warmlog.protocol.transactions import DescribedTransaction

DEFAULT_MAX_TIMEOUT_S = 900.0  # the broker's default for transaction.max.timeout.ms
LIST_COLUMNS = (Column("transactional id"), Column("producer", number=True), Column("state"))
DESCRIBE_COLUMNS = (
    Column("transactional id"),
    Column("state"),
    Column("producer", number=True),
    Column("epoch", number=True),
    Column("timeout s", number=True),
    Column("started"),
    Column("open s", number=True),
    Column("partitions"),
)
OPEN_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("start offset", number=True),
    Column("producer", number=True),
    Column("epoch", number=True),
    Column("last written"),
    Column("transactional id"),
)


@click.command("list", short_help="List transactional ids.")
@click.option("--state", "states", metavar="STATE", multiple=True, help="Only ids in this state; repeatable.")
@click.option(
    "--producer-id", "producer_ids", metavar="N", type=int, multiple=True, help="Only this producer id; repeatable."
)
@click.option(
    "--min-duration",
    "min_duration_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Only transactions that have been open for longer than this.",
)
@click.option("--pattern", metavar="RE", help="Only ids that match this regular expression (RE2) as a whole.")
@native_option
@json_option("One JSON object per id: transactional_id, producer_id, state.")
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    min_duration_s: float | None,
    pattern: str | None,
    native: str,
    as_json: bool,
) -> None:
    """List transactional ids that all options select.

    States: Empty (no transaction yet), Ongoing, PrepareCommit and PrepareAbort (the outcome is decided, markers are
    being written), CompleteCommit, CompleteAbort.
    """
    try:
        listed = run_with_client(
            native,
            lambda client: client.list_transactions(
                states=states, producer_ids=producer_ids, min_duration_s=min_duration_s, pattern=pattern
            ),
        )
    except ValueError as error:  # for an unknown state
        raise click.BadParameter(f"{error}.", param_hint="--state") from error
    rows = [(transaction.transactional_id, transaction.producer_id, transaction.state) for transaction in listed]
    if as_json:
        print_json(*(dict(zip(("transactional_id", "producer_id", "state"), row, strict=True)) for row in rows))
    else:
        print_table(LIST_COLUMNS, rows)


@click.command(short_help="Show states, producers and partitions of transactional ids.")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@native_option
@json_option("One JSON object per id with all fields; times in ms since the epoch.")
def describe(ids: tuple[str, ...], native: str, as_json: bool) -> None:
    """Show states, producers and partitions of transactional ids.

    `started` and `open s` are empty unless a transaction is open. `partitions`: partitions without a marker yet.
    """
    described = run_with_client(native, lambda client: client.describe_transactions(*ids))
    if as_json:
        print_json(*map(description_json, described))
        return
    now_ms = time.time() * 1000
    print_table(
        DESCRIBE_COLUMNS,
        [
            (
                transaction.transactional_id,
                transaction.state,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.timeout_ms / 1000,
                iso_time(started_ms(transaction)),
                None if started_ms(transaction) is None else round((now_ms - transaction.started_ms) / 1000, 1),
                " ".join(f"{entry.topic}-{entry.partition}" for entry in transaction.partitions),
            )
            for transaction in described
        ],
    )


def started_ms(described: "DescribedTransaction") -> int | None:
    """Return the start time of the open transaction; None if none is open."""
    return described.started_ms if described.started_ms >= 0 and described.partitions else None


def description_json(described: "DescribedTransaction") -> dict[str, Any]:
    """Return a description as a JSON object."""
    import msgspec

    form: dict[str, Any] = msgspec.to_builtins(described)
    del form["error"]
    form["started_ms"] = started_ms(described)
    return form


@click.command(short_help="Abort an open transaction, or one that hangs in a partition.")
@click.argument("transactional_id", metavar="[ID]", required=False)
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topics, help="Topic of a hanging transaction.")
@click.option("--partition", metavar="N", type=click.IntRange(min=0), help="Its partition.")
@click.option(
    "--start-offset", metavar="OFFSET", type=click.IntRange(min=0), help="First offset of the transaction there."
)
@native_option
@json_option("One JSON object: transactional_id; or topic, partition, start_offset, producer_id, producer_epoch.")
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    native: str,
    as_json: bool,
) -> None:
    """Abort the open transaction of a transactional id, or one that hangs in a partition.

    With an ID, the coordinator aborts the transaction in all its partitions, and its producer is fenced. With --topic,
    --partition and --start-offset, a marker is written only to this partition, without consulting the coordinator: do
    this only for transactions listed by `find-hanging`.
    """
    key = (topic, partition, start_offset)
    if transactional_id is not None and key == (None, None, None):
        run_with_client(native, lambda client: client.abort_transaction(transactional_id))
        if as_json:
            print_json({"transactional_id": transactional_id})
        else:
            print_line(f"{transactional_id} aborted")
    elif transactional_id is None and topic is not None and partition is not None and start_offset is not None:
        aborted = run_with_client(
            native, lambda client: client.abort_hanging_transaction(topic, partition, start_offset)
        )
        if as_json:
            fields = ("topic", "partition", "start_offset", "producer_id", "producer_epoch")
            print_json({name: getattr(aborted, name) for name in fields})
        else:
            print_line(f"{topic}-{partition}: transaction of producer {aborted.producer_id} aborted")
    else:
        raise click.UsageError("Give either an ID, or --topic, --partition and --start-offset.")


@click.command("find-hanging", short_help="Find transactions that no coordinator will end.")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    shell_complete=complete_topics,
    help="Only this topic; repeatable. Default: all.",
)
@click.option("--partition", metavar="N", type=click.IntRange(min=0), help="Only this partition of the one --topic.")
@click.option(
    "--max-timeout",
    "max_timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=DEFAULT_MAX_TIMEOUT_S,
    show_default=True,
    help="The broker's transaction.max.timeout.ms; younger transactions are ignored.",
)
@native_option
@json_option("One JSON object per transaction and partition with all fields; times in ms since the epoch.")
def find_hanging(
    topics: tuple[str, ...], partition: int | None, max_timeout_s: float, native: str, as_json: bool
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end.

    Readers of committed records wait for them. End one with `abort --topic T --partition N --start-offset OFFSET`.
    """
    if partition is not None and len(topics) != 1:
        raise click.UsageError("--partition needs exactly one --topic.")
    hanging = run_with_client(
        native,
        lambda client: client.find_hanging_transactions(
            topics or None, partition=partition, max_timeout_s=max_timeout_s
        ),
    )
    if as_json:
        print_json(*(transaction._asdict() for transaction in hanging))
    elif hanging:
        print_table(OPEN_COLUMNS, [open_row(transaction) for transaction in hanging])
    else:
        print_line("no hanging transactions")


def open_row(transaction: "OpenTransaction") -> tuple[object, ...]:
    """Return the cells of a transaction that is open in a partition."""
    return (
        transaction.topic,
        transaction.partition,
        transaction.start_offset,
        transaction.producer_id,
        transaction.producer_epoch,
        iso_time(transaction.last_timestamp),
        transaction.transactional_id,
    )
