"""`warmlog pipeline audit TOPIC TABLE`: check a Delta or Iceberg table against its topic."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmlog.cli.output import Column, counted, print_json, print_line, print_table
from warmlog.cli.pipeline.job import JobOptions, pipeline_errors, running, show_stats
from warmlog.cli.pipeline.target import TableTarget

if TYPE_CHECKING:
    from warmlog.pipeline.jobs.table_audit import TableAudit
    from warmlog.pipeline.jobs.table_stretches import PartitionProof

PROVED = {
    "rows": "rows",
    "in log": "in_log",
    "by receipt": "by_receipt",
    "earlier": "earlier",
    "missing": "missing",
    "twice": "twice",
    "altered": "altered",
    "foreign": "foreign",
    "stale": "stale",
    "undead": "undead",
    "unproved": "unproved",
}
OTHER = {
    "superseded": "superseded",
    "deleted": "deletes",
    "elsewhere": "elsewhere",
    "empty": "empty",
    "lost": "lost",
    "unaccounted": "unaccounted",
    "damaged": "damaged",
    "dead letters": "dead_letters",
    "behind": "behind",
    "audited before": "audited_before",
}
HEAD = (
    Column("topic"),
    Column("partition", number=True),
    Column("first offset", number=True),
    Column("end offset", number=True),
)


def audit_target(
    job: JobOptions,
    bootstrap: str | None,
    target: TableTarget,
    state_file: Path | None,
    plot_file: Path | None,
    *,
    as_json: bool,
    **schemas: Any,
) -> int:
    """Audit a table, and print the result; return the number of findings. Raises Failure.

    `schemas`: options that name the sources of schemas.
    """
    with pipeline_errors("deltalake", "pyiceberg", "pyarrow", "numpy", extra="lakehouse"):
        from warmlog.pipeline.errors import PipelineError
        from warmlog.pipeline.job_stats import Reporter
        from warmlog.pipeline.jobs.audit_plot import check_plot
        from warmlog.pipeline.jobs.table_audit import AuditState, audit_table
        from warmlog.pipeline.jobs.table_plot import plot_table_audit
        from warmlog.pipeline.lakehouse.schemas.auditing import sources_of
        from warmlog.pipeline.source.options import COLUMNS as ROW_COLUMNS

        if plot_file is not None:
            check_plot(plot_file)
        options = job.read_options(bootstrap=bootstrap, isolationLevel="read_committed", columns=",".join(ROW_COLUMNS))
        table = target.open(())
        if not table.exists():
            raise PipelineError(f"{table.name}: no such table")
        state = None if state_file is None else AuditState.read(state_file, table.name)
        reporter = Reporter("audit")
        table.refresh()
        if table.is_upserted:
            if job.engine == "spark" or job.master is not None:
                raise PipelineError(f"{table.name} has one row for each key: its audit runs in this process only")
            job = replace(job, engine="local")
        with running("audit", job, lambda: sum(file.size for file in table.files()), reporter) as run:
            result = audit_table(run, options, table, reporter, state, sources=sources_of(**schemas))
            report = reporter.report()
        if state is not None and state_file is not None:
            state.write(state_file)
        if plot_file is not None:
            plot_table_audit(result, plot_file)
    if as_json:
        print_json(result.form())
    else:
        _show(result)
    show_stats(report, job.report_file, quiet=as_json)
    return len(result.findings)


def _show(audit: "TableAudit") -> None:
    names = [name for name in (*PROVED, *OTHER) if any(_number(partition, name) for partition in audit.partitions)]
    columns = (*HEAD, *(Column(name, number=True) for name in names))
    print_table(columns, [_row(partition, names) for partition in audit.partitions])
    for finding in audit.findings:
        print_line(f"{finding.topic}-{finding.partition}: {finding.what}: {finding.path}")
    rows = sum(partition.proved.rows for partition in audit.partitions)
    results = [counted(len(audit.findings), "finding")] if audit.findings else []
    if unproved := sum(partition.proved.unproved for partition in audit.partitions):
        results.append(f"{counted(unproved, 'row')} cannot be proved")
    if unaccounted := sum(partition.unaccounted for partition in audit.partitions):
        results.append(f"{counted(unaccounted, 'offset')} not accounted for")
    what = ", ".join(results) or "nothing wrong"
    print_line(f"{counted(len(audit.partitions), 'partition')}, {counted(rows, 'row')}: {what}")


def _row(partition: "PartitionProof", names: Sequence[str]) -> tuple[object, ...]:
    numbers = [_number(partition, name) for name in names]
    offsets = (partition.first_offset, partition.end_offset)
    return (partition.topic, partition.partition, *offsets, *(f"{number:,}" if number else None for number in numbers))


def _number(partition: "PartitionProof", name: str) -> int:
    return int(getattr(partition.proved, PROVED[name]) if name in PROVED else getattr(partition, OTHER[name]))
