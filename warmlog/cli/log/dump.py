"""`warmlog log dump`: print the files of segments. `segment_json` defines the items; this module prints them as tables.

1. Files are only read: a running broker is not disturbed.
2. A damaged file is printed up to the damage, which is then reported; the exit status is 1.
3. Rows are printed as they are read, so that logs of any size can be dumped.
"""

from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from warmlog.cli.log.group_record_json import group_record_fields
from warmlog.cli.log.segment_json import READERS, DumpOptions, Item, is_damage
from warmlog.cli.log.share_record_json import share_record_fields
from warmlog.cli.options import json_option
from warmlog.cli.output import StreamedTable, binary_size, iso_time, print_json, print_line
from warmlog.inspect.paths import SegmentFile, files_to_read

TABLES = {
    "batch": StreamedTable(position=12, size=9, offsets=-21, records=8, codec=-6, time=-24, epoch=5, producer=-12),
    "offset_index_entry": StreamedTable(slot=8, offset=14, position=12),
    "time_index_entry": StreamedTable(slot=8, time=-24, offset=14),
    "aborted_transaction": StreamedTable(slot=8, producer=12, offsets=-21, stable=14),
    "producer": StreamedTable(slot=8, producer=-12, sequences=-21, offset=14, time=-24, transaction=-20),
}

DECODERS = {"offsets": group_record_fields, "share-group-state": share_record_fields}


@click.command(short_help="Print the batches, records and index entries of segment files.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--records", is_flag=True, help="Print the records of each batch as well.")
@click.option(
    "--offsets-decoder",
    "decoder",
    flag_value="offsets",
    help="Decode records of __consumer_offsets; implies --records.",
)
@click.option(
    "--share-group-state-decoder",
    "decoder",
    flag_value="share-group-state",
    help="Decode records of __share_group_state; implies --records.",
)
@json_option("One JSON object per line: type, file and the fields of a batch, a record or an entry.")
@click.pass_context
def dump(context: click.Context, paths: tuple[Path, ...], records: bool, decoder: str | None, as_json: bool) -> None:
    """Print the batches, records and index entries of segment files.

    PATH is a data directory, the directory of a partition, or a file: .log, .index, .timeindex, .txnindex (aborted
    transactions) or .snapshot (producers). Safe beside a running broker. The exit status is 1 if a file is damaged.
    """
    damaged, options = (
        False,
        DumpOptions(records or decoder is not None, None if decoder is None else DECODERS[decoder]),
    )
    for path in paths:
        for file in files_to_read(path):
            if file.suffix in READERS:
                damaged |= print_file(file, options, as_json=as_json)
    if damaged:
        context.exit(1)


def print_file(file: SegmentFile, options: DumpOptions, *, as_json: bool) -> bool:
    """Print the items of one file; return whether it is damaged."""
    damaged = False
    printer = None if as_json else TablePrinter(file)
    for item in READERS[file.suffix](file, options):
        damaged |= is_damage(item)
        if printer is None:
            print_json({"type": item.pop("type"), "file": str(file.path), **item})
        else:
            printer.show(item)
    return damaged


class TablePrinter:
    """Prints the items of one file as rows of a table, and items of other types as lines between the rows."""

    def __init__(self, file: SegmentFile) -> None:
        print_line(f"{file.path}  ({binary_size(file.path.stat().st_size)})")
        self._titled = False

    def show(self, item: Item) -> None:
        """Print one item."""
        kind = item["type"]
        if kind not in TABLES:
            print_line(LINES[kind](item))
            return
        if not self._titled:
            TABLES[kind].header()
            self._titled = True
        TABLES[kind].row(*ROWS[kind](item))


def batch_row(item: Item) -> tuple[object, ...]:
    """Return the cells of a batch; the last cell has its unusual properties."""
    marks = [name for name in ("transactional", "control") if item[name]]
    producer = "" if item["producer_id"] is None else f"{item['producer_id']}/{item['producer_epoch']}"
    marks += [] if item["delete_horizon"] is None else [f"delete-horizon={iso_time(item['delete_horizon'])}"]
    marks += ["log-append-time"] if item["timestamp_type"] == "log_append_time" else []
    marks += [] if item["crc_valid"] else ["CRC DOES NOT MATCH"]
    return (
        item["position"],
        item["size"],
        f"{item['base_offset']}..{item['last_offset']}",
        item["record_count"],
        item["codec"],
        iso_time(item["max_timestamp"]),
        item["leader_epoch"],
        " ".join(filter(None, [producer, *marks])),
    )


def record_line(item: Item) -> str:
    """Format a record, as a line below its batch."""
    time = iso_time(item["timestamp"]) or "no time"
    prefix = f"    {item['offset']}  {time}  "
    if "marker" in item:
        return f"{prefix}{item['marker']} of coordinator epoch {item['coordinator_epoch']}"
    if "decoded_key" in item:
        return f"{prefix}{as_text(item['decoded_key'])}  {as_text(item['decoded_value'])}"
    headers = " ".join(f"{header['key']}={field_text(header, 'value')}" for header in item["headers"])
    line = f"{prefix}key={field_text(item, 'key')}  value={field_text(item, 'value')}"
    return f"{line}  headers: {headers}" if headers else line


def as_text(value: object) -> str:
    """Format a value as one line of JSON."""
    return msgspec.json.encode(value).decode()


def producer_row(item: Item) -> tuple[object, ...]:
    """Return the cells of a producer. A producer whose epoch has no batch has no sequences and no offset."""
    has_batch = item["last_sequence"] is not None
    since = item["transaction_first_offset"]
    return (
        item["slot"],
        f"{item['producer_id']}/{item['producer_epoch']}",
        f"{item['first_sequence']}..{item['last_sequence']}" if has_batch else "",
        item["last_offset"],
        iso_time(item["last_timestamp"]),
        "" if since is None else f"open since {since}",
    )


def transaction_row(item: Item) -> tuple[object, ...]:
    """Return the cells of an aborted transaction."""
    offsets = f"{item['first_offset']}..{item['last_offset']}"
    return item["slot"], item["producer_id"], offsets, item["last_stable_offset"]


def field_text(item: Item, name: str) -> str:
    """Format a field: UTF-8 text as JSON, other bytes in base64."""
    return msgspec.json.encode(item[name]).decode() if name in item else f"base64:{item[f'{name}_base64']}"


def end_line(item: Item) -> str:
    """Format padding or damage."""
    where = f"position {item['position']}" if "position" in item else f"slot {item['slot']}"
    return f"    {item['type'].upper() if is_damage(item) else item['type']} at {where}: {item['reason']}"


ROWS: dict[str, Callable[[Item], tuple[object, ...]]] = {
    "batch": batch_row,
    "offset_index_entry": lambda item: (item["slot"], item["offset"], item["position"]),
    "time_index_entry": lambda item: (item["slot"], iso_time(item["timestamp"]), item["offset"]),
    "aborted_transaction": transaction_row,
    "producer": producer_row,
}
LINES: dict[str, Callable[[Item], str]] = {"record": record_line, "padding": end_line, "damage": end_line}
