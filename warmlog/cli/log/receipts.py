"""`warmlog log receipts`: the actions of recovery after unclean stops."""

from collections.abc import Iterator
from pathlib import Path

import click

from warmlog.broker.log.directory.receipt import LogReceipt, Receipt, ReceiptError, read_receipts
from warmlog.broker.log.io.disk import Disk
from warmlog.cli.failure import CannotStart
from warmlog.cli.options import json_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table

COLUMNS = (
    Column("started"),
    Column("seconds", number=True),
    Column("logs", number=True),
    Column("checked", number=True),
    Column("truncated", number=True),
    Column("repaired", number=True),
    Column("reason"),
)


@click.command(short_help="Show what recovery did after unclean stops.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("-n", "--count", metavar="N", type=click.IntRange(min=1), help="Show only the newest N.")
@json_option("One JSON object per receipt, oldest first.")
@click.pass_context
def receipts(context: click.Context, directory: Path, count: int | None, as_json: bool) -> None:
    """Show what recovery did after unclean stops.

    DIR is a data directory. After an unclean stop, the next start checks all data that may not have reached the disk,
    and writes a receipt, a file in DIR that lists what was checked, truncated and rebuilt. Receipts are printed oldest
    first. The exit status is 1 if a receipt is damaged.
    """
    latest = receipts_in(directory)[-(count or 0) :]
    damaged = [each for each in latest if isinstance(each, ReceiptError)]
    sound = [each for each in latest if not isinstance(each, ReceiptError)]
    if as_json:
        print_json(*sound)
    elif sound:
        show(sound)
    elif not damaged:
        print_line("no receipts: no start followed an unclean stop, or there was no space to write one")
    for error in damaged:
        click.echo(f"warmlog: {error}", err=True)
    if damaged:
        context.exit(1)


def receipts_in(directory: Path) -> list[Receipt | ReceiptError]:
    """Read the receipts of a data directory, oldest first. Raises CannotStart if it cannot be read."""
    try:
        return list(read_receipts(Disk(), str(directory)))
    except OSError as error:
        raise CannotStart(f"{directory}: {error.strerror}") from error


def show(listed: list[Receipt]) -> None:
    """Print a table with a row per receipt, then the repairs of each log."""
    print_table(COLUMNS, map(row, listed))
    for receipt in listed:
        lines = [*receipt.findings, *(line for log in receipt.logs for line in repair_lines(log))]
        if lines:
            print_line(f"\n{receipt.started_at}")
        for line in lines:
            print_line(f"  {line}")


def row(receipt: Receipt) -> tuple[object, ...]:
    """Return the cells of a receipt for COLUMNS."""
    reason = receipt.reason if receipt.complete else f"{receipt.reason}; ended before all logs were open"
    repaired = sum(1 for log in receipt.logs if log.repairs)
    checked, truncated = binary_size(receipt.scanned_bytes), binary_size(receipt.truncated_bytes)
    return receipt.started_at, f"{receipt.seconds:.3f}", receipt.log_count, checked, truncated, repaired, reason


def repair_lines(log: LogReceipt) -> Iterator[str]:
    """Yield the repairs of a log, one line each; none for an undamaged log."""
    name = f"{log.topic}-{log.partition}"
    if log.truncated_bytes:
        size = counted(log.truncated_bytes, "byte")
        yield f"{name}: {size} truncated at offset {log.truncated_at}: {log.truncation_reason}"
    for what, bases in (
        ("later segments removed", log.removed_segments),
        ("offset indexes rebuilt for segments", log.rebuilt_indexes),
        ("time indexes rebuilt for segments", log.rebuilt_time_indexes),
        ("transaction indexes rebuilt for segments", log.rebuilt_transaction_indexes),
        ("producer snapshots removed", log.removed_snapshots),
        ("leftovers of interrupted changes resolved", log.leftovers),
    ):
        if bases:
            yield f"{name}: {what}: {', '.join(map(str, bases))}"
    if log.rebuilt_epochs:
        yield f"{name}: leader epochs rebuilt from the batches"
