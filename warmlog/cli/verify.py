"""`warmlog log verify`: whether what lies on the disk is what it should be.

Owns: the order of the checks, and how findings are told. Must not know: what is checked (`*_checks`).
"""

from dataclasses import asdict
from pathlib import Path

import click

from warmlog.cli.options import directories_argument, index_interval_option, json_option
from warmlog.cli.output import binary_size, print_json, print_line
from warmlog.cli.progress import Progress
from warmlog.inspect.all_checks import Looking, all_findings
from warmlog.inspect.findings import Finding, Tally

BESIDE_A_BROKER = "a broker is at work; not judged: checkpoints, leftovers, missing partitions, what it is writing now"


@click.command(short_help="Check partition directories without writing.")
@directories_argument
@index_interval_option
@json_option("One JSON object: what was looked at, and the findings.")
@click.pass_context
def verify(context: click.Context, directories: tuple[Path, ...], index_interval_bytes: int, as_json: bool) -> None:
    """Check partition directories without writing.

    DIR is a data directory (give all of a broker's at once) or the directory of a partition. Every batch is read, and
    its CRC and records are checked; indexes, transaction indexes, producer snapshots, leader epochs, checkpoints, the
    metadata and the names of files are compared with the logs. Safe beside a running broker; the output then says so,
    and names what cannot be checked. The exit status is 1 if something is wrong.
    """
    tally, findings = Tally(), []
    with Progress("verifying") as progress:
        looking = Looking(index_interval_bytes=index_interval_bytes, progress=progress.advance)
        for finding in all_findings(directories, looking, tally):
            findings.append(finding)
            if not as_json:
                progress.erase()
                print_line(finding.line())
    if as_json:
        print_json(asdict(tally) | {"findings": [finding_form(finding) for finding in findings]})
    else:
        for served in tally.served:
            print_line(f"{served}: {BESIDE_A_BROKER}")
        print_line(summary(tally, len(findings)))
    if findings:
        context.exit(1)


def finding_form(finding: Finding) -> dict[str, object]:
    """A finding for scripts."""
    return {"path": str(finding.path), "position": finding.position, "finding": finding.what}


def summary(tally: Tally, finding_count: int) -> str:
    """The last line for people."""
    counts = [(tally.partitions, "partitions"), (tally.segments, "segments"), (tally.batches, "batches")]
    seen = ", ".join(f"{count:,} {what}" for count, what in [*counts, (tally.records, "records")])
    return f"{seen}, {binary_size(tally.size)}: {f'{finding_count:,} findings' if finding_count else 'nothing wrong'}"
