"""`warmlog pipeline audit` and `compact-report`."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.options import json_option
from warmlog.cli.output import Column, binary_size, counted, iso_time, print_json, print_line, print_table
from warmlog.cli.pipeline.audit_table import audit_target
from warmlog.cli.pipeline.formats import SCHEMA_NAMES, schema_options
from warmlog.cli.pipeline.job import JobOptions, bootstrap_option, job_options, pipeline_errors, running, show_stats
from warmlog.cli.pipeline.target import TableTarget, table_options

if TYPE_CHECKING:
    from warmlog.pipeline.jobs.audit import Audit, PartitionAudit
    from warmlog.pipeline.jobs.audit_segment import Hour
    from warmlog.pipeline.jobs.compaction import Compactable

HOUR_MS = 3_600_000
OPTIONAL_TOPIC = click.option("--topic", metavar="TOPICS", help="A topic, or several separated by commas.")
COUNTS = ("markers", "compacted", "missing", "duplicates", "damaged")
AUDIT_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("hour"),
    Column("records", number=True),
    Column("bytes", number=True),
    Column("first offset", number=True),
    Column("last offset", number=True),
    *(Column(name, number=True) for name in COUNTS),
)
COMPACT_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    *(Column(name, number=True) for name in ("records", "keys", "tombstones", "would go")),
    Column("on disk", number=True),
    Column("would be saved", number=True),
    Column("dirty ratio", number=True),
)
TOP_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("key"),
    Column("records", number=True),
    Column("bytes", number=True),
)


@click.command()
@partial(job_options, topic=OPTIONAL_TOPIC)
@click.argument("topic_name", metavar="[TOPIC", required=False)
@click.argument("target", metavar="TABLE]", required=False)
@bootstrap_option
@table_options
@partial(schema_options, several=True)
@click.option(
    "--state",
    "state_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="With TABLE: skip offsets proved by the last audit with this file, and update the file.",
)
@click.option("--table", "table_option", hidden=True)
@click.option(
    "--by",
    type=click.Choice(["hour", "partition"]),
    default="hour",
    show_default=True,
    help="Rows per hour or per partition.",
)
@click.option(
    "--plot", "plot_file", metavar="FILE", type=click.Path(path_type=Path), help="Draw the audit as .svg or .png."
)
@json_option("One JSON object: partitions by hour, and the findings.")
@click.pass_context
def audit(
    context: click.Context,
    /,
    topic_name: str | None,
    target: str | None,
    bootstrap: str | None,
    catalog: str | None,
    warehouse: str | None,
    storage: tuple[tuple[str, str], ...],
    state_file: Path | None,
    table_option: str | None,
    by: str,
    plot_file: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Account for every offset of topics, in their directories or in a table.

    Without TABLE the directories are audited. The CRC of every batch is checked. Missing, compacted, damaged and
    duplicate offsets are counted by partition and hour, and both indexes are checked against the log.

    TABLE is a Delta or Iceberg table, named as for `table`. Every offset must be in it once; otherwise a finding gives
    the reason, and missing, duplicate and altered rows are listed with their files. A table with decoded columns needs
    the schemas used for decoding: from the registry, or from all files that were used.

    The exit status is 1 if there are findings.
    """
    if table_option is not None:
        raise click.UsageError("--table was replaced by an argument: warmlog pipeline audit TOPIC TABLE.")
    schemas = {name: given.pop(name) for name in SCHEMA_NAMES}
    job = JobOptions(**{**given, "topic": _topic(topic_name, given["topic"])})
    if target is not None:
        where = TableTarget(target=target, catalog=catalog, warehouse=warehouse, storage=storage)
        if audit_target(job, bootstrap, where, state_file, plot_file, as_json=as_json, **schemas):
            context.exit(1)
        return
    if catalog is not None or state_file is not None or bootstrap is not None or any(schemas.values()):
        raise click.UsageError("--catalog, --state, --bootstrap and schemas are for TABLE, which is missing.")
    with pipeline_errors("pyarrow", "numpy"):
        from warmlog.pipeline.job_stats import Reporter
        from warmlog.pipeline.jobs.audit import audit_topics
        from warmlog.pipeline.jobs.audit_plot import check_plot, plot_audit
        from warmlog.pipeline.source.input import size_of

        if plot_file is not None:
            check_plot(plot_file)
        options = job.read_options()
        if options.path is None:
            raise click.UsageError("audit reads directories: give --path.")
        reporter = Reporter("audit")
        with running("audit", job, lambda: size_of(options), reporter) as run:
            result = audit_topics(run, options, reporter)
            report = reporter.report()
        if plot_file is not None:
            plot_audit(result, plot_file)
    if as_json:
        print_json(asdict(result))
    else:
        _show_audit(result, by)
    show_stats(report, job.report_file, quiet=as_json)
    if result.finding_count:
        context.exit(1)


def _topic(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None:
        raise click.UsageError("TOPIC and --topic exclude each other.")
    topic = argument if argument is not None else option
    if topic is None:
        raise click.UsageError("Missing argument 'TOPIC', or option '--topic'.")
    return topic


def _show_audit(audit: "Audit", by: str) -> None:
    print_table(AUDIT_COLUMNS, [row for partition in audit.partitions for row in _audit_rows(partition, by)])
    for finding in audit.findings:
        print_line(str(finding))
    if audit.finding_count > len(audit.findings):
        print_line(f"and {audit.finding_count - len(audit.findings):,} more")
    for partition in audit.partitions:
        if partition.changed:
            segments = counted(partition.changed, "segment")
            print_line(
                f"{partition.topic}-{partition.partition}: {segments} changed while being read, and"
                f" {partition.unaccounted:,} offsets are not accounted for"
            )
    records = sum(hour.records for partition in audit.partitions for hour in partition.hours)
    wrong = counted(audit.finding_count, "finding") if audit.finding_count else "nothing wrong"
    print_line(f"{counted(len(audit.partitions), 'partition')}, {counted(records, 'record')}: {wrong}")


def _audit_rows(audited: "PartitionAudit", by: str) -> list[tuple[object, ...]]:
    hours = audited.hours if by == "hour" else [audited.total()]
    return [(audited.topic, audited.partition, *_hour_cells(hour)) for hour in hours]


def _hour_cells(hour: "Hour") -> tuple[object, ...]:
    time = None if hour.hour is None else (iso_time(hour.hour * HOUR_MS) or "")[:13]
    counts = (getattr(hour, name) or None for name in COUNTS)
    offsets = (hour.first_offset, hour.last_offset)
    return (time, f"{hour.records:,}", binary_size(hour.bytes), *offsets, *counts)


@click.command("compact-report")
@job_options
@bootstrap_option
@click.option(
    "--top", metavar="N", type=click.IntRange(min=0), default=5, show_default=True, help="Number of keys to list."
)
@json_option("One JSON object per partition.")
def compact_report(bootstrap: str | None, top: int, as_json: bool, **given: Any) -> None:
    """Report the space that compaction would save in each partition, and the keys that take the most bytes."""
    job = JobOptions(**given)
    with pipeline_errors("pyarrow"):
        from warmlog.pipeline.job_stats import Reporter
        from warmlog.pipeline.jobs.compaction import report_compaction
        from warmlog.pipeline.source.input import size_of

        options = job.read_options(bootstrap=bootstrap)
        reporter = Reporter("compact-report")
        with running("compact-report", job, lambda: size_of(options), reporter) as run:
            results = report_compaction(run, options, top, reporter)
            report = reporter.report()
    if as_json:
        print_json(*(asdict(each) for each in results))
    else:
        _show_compaction(results)
    show_stats(report, job.report_file, quiet=as_json)


def _show_compaction(report: list["Compactable"]) -> None:
    print_table(COMPACT_COLUMNS, [_compact_row(each) for each in report])
    keys = [
        (each.topic, each.partition, key.text, f"{key.records:,}", binary_size(key.bytes))
        for each in report
        for key in each.top
    ]
    if keys:
        print_line()
        print_table(TOP_COLUMNS, keys)
    for each in report:
        if each.keyless:
            print_line(f"{each.topic}-{each.partition}: {counted(each.keyless, 'record')} without a key, not counted")


def _compact_row(compactable: "Compactable") -> tuple[object, ...]:
    stored = None if compactable.stored_bytes is None else binary_size(compactable.stored_bytes)
    saved = compactable.saved_bytes if compactable.stored_saved_bytes is None else compactable.stored_saved_bytes
    share = f"{binary_size(saved)} ({100 * compactable.saved_bytes // max(compactable.bytes, 1)} %)"
    ratio = None if compactable.dirty_ratio is None else f"{compactable.dirty_ratio:.2f}"
    counts = (compactable.records, compactable.keys, compactable.tombstones, compactable.saved_records)
    return (compactable.topic, compactable.partition, *(f"{count:,}" for count in counts), stored, share, ratio)
