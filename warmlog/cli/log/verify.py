"""`warmlog log verify`: check partition directories."""

from dataclasses import asdict
from pathlib import Path

import click

from warmlog.cli.options import directories_argument, index_interval_option, json_option
from warmlog.cli.output import binary_size, print_json, print_line
from warmlog.cli.progress import Progress
from warmlog.inspect.checks.directories import CheckOptions, check_directories
from warmlog.inspect.findings import Finding, Tally

SERVED = "a broker is running; not checked: checkpoints, leftovers, missing partitions, and files it is writing"


@click.command(short_help="Check partition directories without writing.")
@directories_argument
@index_interval_option
@json_option("One JSON object: totals and findings.")
@click.pass_context
def verify(context: click.Context, directories: tuple[Path, ...], index_interval_bytes: int, as_json: bool) -> None:
    """Check partition directories without writing.

    DIR is a data directory (name all directories of a broker together) or the directory of a partition. The CRC and
    the records of every batch are checked; indexes, transaction indexes, producer snapshots, leader epochs,
    checkpoints, metadata and file names are checked against the logs. Safe beside a running broker; the output then
    lists what was not checked. The exit status is 1 if there are findings.
    """
    tally, findings = Tally(), []
    with Progress("verifying") as progress:
        options = CheckOptions(index_interval_bytes=index_interval_bytes, progress=progress.advance)
        for finding in check_directories(directories, options, tally):
            findings.append(finding)
            if not as_json:
                progress.erase()
                print_line(finding.line())
    if as_json:
        print_json(asdict(tally) | {"findings": [finding_json(finding) for finding in findings]})
    else:
        for served in tally.served:
            print_line(f"{served}: {SERVED}")
        print_line(summary(tally, len(findings)))
    if findings:
        context.exit(1)


def finding_json(finding: Finding) -> dict[str, object]:
    """Return a finding as a JSON object."""
    return {"path": str(finding.path), "position": finding.position, "finding": finding.what}


def summary(tally: Tally, finding_count: int) -> str:
    """Format the totals as the last line of the output."""
    counts = [(tally.partitions, "partitions"), (tally.segments, "segments"), (tally.batches, "batches")]
    seen = ", ".join(f"{count:,} {what}" for count, what in [*counts, (tally.records, "records")])
    return f"{seen}, {binary_size(tally.size)}: {f'{finding_count:,} findings' if finding_count else 'nothing wrong'}"
