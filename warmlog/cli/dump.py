"""`warmlog log dump`: what is in the files of segments.

Owns: the options, and how items look as tables. Must not know: what there is to tell of an item (`segment_forms`).

1. Nothing is written, and no file is opened but for reading: a running broker does not notice.
2. A damaged file is printed up to the damage, which is then told; the exit status is 1.
3. Rows are printed as they are read, so that a log of any size can be dumped.
"""

from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from warmlog.cli.options import json_option
from warmlog.cli.output import StreamedTable, binary_size, iso_time, print_json, print_line
from warmlog.cli.segment_forms import READERS, Form, Shown, is_damage
from warmlog.inspect.paths import SegmentFile, files_to_read

TABLES = {
    "batch": StreamedTable(position=12, size=9, offsets=-21, records=8, codec=-6, time=-24, epoch=5, producer=-12),
    "offset_index_entry": StreamedTable(slot=8, offset=14, position=12),
    "time_index_entry": StreamedTable(slot=8, time=-24, offset=14),
    "aborted_transaction": StreamedTable(slot=8, producer=12, offsets=-21, stable=14),
    "producer": StreamedTable(slot=8, producer=-12, sequences=-21, offset=14, time=-24, transaction=-20),
}


@click.command(short_help="Print the batches, records and index entries of segment files.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--records", is_flag=True, help="Print the records of each batch as well.")
@click.option("--offsets-decoder", is_flag=True, help="Decode records of __consumer_offsets; implies --records.")
@json_option("One JSON object per line: type, file and the fields of a batch, a record or an entry.")
@click.pass_context
def dump(context: click.Context, paths: tuple[Path, ...], records: bool, offsets_decoder: bool, as_json: bool) -> None:
    """Print the batches, records and index entries of segment files.

    PATH is a data directory, the directory of a partition, or a file: .log, .index, .timeindex, .txnindex (aborted
    transactions) or .snapshot (producers). Works beside a running broker. The exit status is 1 if something is damaged.
    """
    damaged, shown = False, Shown(records=records or offsets_decoder, decodes_offsets=offsets_decoder)
    for path in paths:
        for file in files_to_read(path):
            if file.suffix in READERS:
                damaged |= print_file(file, shown, as_json=as_json)
    if damaged:
        context.exit(1)


def print_file(file: SegmentFile, shown: Shown, *, as_json: bool) -> bool:
    """Print what is in one file; gives whether something of it is damaged."""
    damaged = False
    printer = None if as_json else FormPrinter(file)
    for form in READERS[file.suffix](file, shown):
        damaged |= is_damage(form)
        if printer is None:
            print_json({"type": form.pop("type"), "file": str(file.path), **form})
        else:
            printer.show(form)
    return damaged


class FormPrinter:
    """Prints the items of one file as rows; titles where the kind of item changes back to a table's."""

    def __init__(self, file: SegmentFile) -> None:
        print_line(f"{file.path}  ({binary_size(file.path.stat().st_size)})")
        self._titled = False

    def show(self, form: Form) -> None:
        """Print one item."""
        kind = form["type"]
        if kind not in TABLES:
            print_line(LINES[kind](form))
            return
        if not self._titled:
            TABLES[kind].header()
            self._titled = True
        TABLES[kind].row(*ROWS[kind](form))


def batch_row(form: Form) -> tuple[object, ...]:
    """The cells of a batch; what is unusual about it stands in the last one."""
    marks = [name for name in ("transactional", "control") if form[name]]
    producer = "" if form["producer_id"] is None else f"{form['producer_id']}/{form['producer_epoch']}"
    marks += [] if form["delete_horizon"] is None else [f"delete-horizon={iso_time(form['delete_horizon'])}"]
    marks += ["log-append-time"] if form["timestamp_type"] == "log_append_time" else []
    marks += [] if form["crc_valid"] else ["CRC DOES NOT MATCH"]
    return (
        form["position"],
        form["size"],
        f"{form['base_offset']}..{form['last_offset']}",
        form["record_count"],
        form["codec"],
        iso_time(form["max_timestamp"]),
        form["leader_epoch"],
        " ".join(filter(None, [producer, *marks])),
    )


def record_line(form: Form) -> str:
    """A record under its batch."""
    time = iso_time(form["timestamp"]) or "no time"
    begin = f"    {form['offset']}  {time}  "
    if "marker" in form:
        return f"{begin}{form['marker']} of coordinator epoch {form['coordinator_epoch']}"
    if "decoded_key" in form:
        return f"{begin}{as_text(form['decoded_key'])}  {as_text(form['decoded_value'])}"
    headers = " ".join(f"{header['key']}={shown(header, 'value')}" for header in form["headers"])
    line = f"{begin}key={shown(form, 'key')}  value={shown(form, 'value')}"
    return f"{line}  headers: {headers}" if headers else line


def as_text(value: object) -> str:
    """A value in one line."""
    return msgspec.json.encode(value).decode()


def producer_row(form: Form) -> tuple[object, ...]:
    """The cells of a producer; one without a batch in its epoch has neither sequences nor an offset."""
    has_batch = form["last_sequence"] is not None
    since = form["transaction_first_offset"]
    return (
        form["slot"],
        f"{form['producer_id']}/{form['producer_epoch']}",
        f"{form['first_sequence']}..{form['last_sequence']}" if has_batch else "",
        form["last_offset"],
        iso_time(form["last_timestamp"]),
        "" if since is None else f"open since {since}",
    )


def transaction_row(form: Form) -> tuple[object, ...]:
    """The cells of an aborted transaction."""
    offsets = f"{form['first_offset']}..{form['last_offset']}"
    return form["slot"], form["producer_id"], offsets, form["last_stable_offset"]


def shown(form: Form, name: str) -> str:
    """Text as in JSON, bytes that are none in base64."""
    return msgspec.json.encode(form[name]).decode() if name in form else f"base64:{form[f'{name}_base64']}"


def end_line(form: Form) -> str:
    """Padding or damage."""
    where = f"position {form['position']}" if "position" in form else f"slot {form['slot']}"
    return f"    {form['type'].upper() if is_damage(form) else form['type']} at {where}: {form['reason']}"


ROWS: dict[str, Callable[[Form], tuple[object, ...]]] = {
    "batch": batch_row,
    "offset_index_entry": lambda form: (form["slot"], form["offset"], form["position"]),
    "time_index_entry": lambda form: (form["slot"], iso_time(form["timestamp"]), form["offset"]),
    "aborted_transaction": transaction_row,
    "producer": producer_row,
}
LINES: dict[str, Callable[[Form], str]] = {"record": record_line, "padding": end_line, "damage": end_line}
