"""`warmlog log receipts`: what starts after unclean stops did to the logs.

Owns: how receipts are told to people. Must not know: how they are written (`broker.log.directory.receipt`).
"""

from collections.abc import Iterator
from pathlib import Path

import click

from broker.log.directory.receipt import LogReceipt, Receipt, ReceiptError, read_receipts
from broker.log.io.disk import Disk
from warmlog.cli.failure import CannotStart
from warmlog.cli.options import json_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table

COLUMNS = (
    Column("started"),
    Column("seconds", number=True),
    Column("logs", number=True),
    Column("checked", number=True),
    Column("cut", number=True),
    Column("mended", number=True),
    Column("why"),
)


@click.command(short_help="Show what was recovered after unclean stops.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("-n", "--count", metavar="N", type=click.IntRange(min=1), help="Show only the newest N.")
@json_option("One JSON object per receipt, oldest first.")
@click.pass_context
def receipts(context: click.Context, directory: Path, count: int | None, as_json: bool) -> None:
    """Show what was recovered after unclean stops.

    DIR is a data directory. After an unclean stop, the next startup checks whatever may not have reached the disk, and
    writes a receipt, a file in the directory, of what it read, truncated and rebuilt. The oldest comes first. The exit
    status is 1 if a receipt cannot be read.
    """
    found = receipts_in(directory)[-(count or 0) :]
    damaged = [each for each in found if isinstance(each, ReceiptError)]
    sound = [each for each in found if not isinstance(each, ReceiptError)]
    if as_json:
        print_json(*sound)
    elif sound:
        tell(sound)
    elif not damaged:
        print_line("no receipts: there was no start after an unclean stop, or no room to write one")
    for error in damaged:
        click.echo(f"warmlog: {error}", err=True)
    if damaged:
        context.exit(1)


def receipts_in(directory: Path) -> list[Receipt | ReceiptError]:
    """All receipts of a data directory, oldest first. Raises CannotStart if it cannot be read."""
    try:
        return list(read_receipts(Disk(), str(directory)))
    except OSError as error:
        raise CannotStart(f"{directory}: {error.strerror}") from error


def tell(found: list[Receipt]) -> None:
    """A table with a row for each receipt; then what was mended, log by log."""
    print_table(COLUMNS, map(row, found))
    for receipt in found:
        lines = [*receipt.findings, *(line for log in receipt.logs for line in mended(log))]
        if lines:
            print_line(f"\n{receipt.started_at}")
        for line in lines:
            print_line(f"  {line}")


def row(receipt: Receipt) -> tuple[object, ...]:
    """A receipt's cells under COLUMNS."""
    why = receipt.reason if receipt.complete else f"{receipt.reason}; ended before all logs were open"
    mended_logs = sum(1 for log in receipt.logs if log.repairs)
    checked, cut = binary_size(receipt.scanned_bytes), binary_size(receipt.truncated_bytes)
    return receipt.started_at, f"{receipt.seconds:.3f}", receipt.log_count, checked, cut, mended_logs, why


def mended(log: LogReceipt) -> Iterator[str]:
    """What was wrong in a log and put right, a line each; nothing where all was sound."""
    name = f"{log.topic}-{log.partition}"
    if log.truncated_bytes:
        size = counted(log.truncated_bytes, "byte")
        yield f"{name}: {size} cut at offset {log.truncated_at}: {log.truncation_reason}"
    for what, bases in (
        ("segments after it removed", log.removed_segments),
        ("offset indexes rebuilt of segments", log.rebuilt_indexes),
        ("time indexes rebuilt of segments", log.rebuilt_time_indexes),
        ("transaction indexes rebuilt of segments", log.rebuilt_transaction_indexes),
        ("snapshots of producers removed", log.removed_snapshots),
        ("left over and resolved", log.leftovers),
    ):
        if bases:
            yield f"{name}: {what}: {', '.join(map(str, bases))}"
    if log.rebuilt_epochs:
        yield f"{name}: leader epochs made anew from the batches"
