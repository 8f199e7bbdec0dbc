"""`warmlog mirror --from HOST:PORT`: run a broker that mirrors topics of another cluster."""

from typing import Any

import click

from warmlog.cli.command_groups import LazyGroup
from warmlog.cli.serve import serve_options, serve_with

COMMANDS = {
    "status": ("warmlog.cli.mirror.copies", "status", "Show the progress of the copies."),
    "promote": ("warmlog.cli.mirror.copies", "promote", "Stop mirroring topics, and make them writable."),
}
ALL_GROUPS = ".*"


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    short_help="Mirror topics of another cluster; promote the copies.",
)
@click.option("--from", "source", metavar="H:P,...", help="Brokers of the cluster to mirror: Kafka or warmlog.")
@click.option(
    "--topics", metavar="RE", help="Only topics whose names match this regular expression (RE2).  [default: .*]"
)
@click.option(
    "--groups",
    metavar="[RE]",
    is_flag=False,
    flag_value=ALL_GROUPS,
    help="Also copy the committed offsets of consumer groups: of all, or of those whose names match.",
)
@click.option("--delete-topics", is_flag=True, help="Delete topics here after their deletion at the source.")
@click.option(
    "--max-bytes-per-second", "rate", metavar="N", type=click.IntRange(min=1), help="Limit of the copying rate."
)
@serve_options
@click.pass_context
def mirror(
    context: click.Context,
    /,
    source: str | None,
    topics: str | None,
    groups: str | None,
    delete_topics: bool,
    rate: int | None,
    assignments: tuple[str, ...],
    **options: Any,
) -> None:
    """Run a broker that keeps a live copy of topics of another cluster, until SIGTERM or SIGINT.

    The copies have the same offsets, bytes and leader epochs, and are read-only until they are promoted. The options
    set the settings of the same names (warmlog.mirror.from ...), with which `warmlog serve` does the same.
    """
    if context.invoked_subcommand is not None:
        given = [name for name, value in context.params.items() if value and is_given(context, name)]
        if given:
            raise click.UsageError(f"`{context.invoked_subcommand}` takes its options after its name.", context)
        return
    if source is None:
        raise click.UsageError("Name the cluster to mirror with --from HOST:PORT, or a command.", context)
    chosen = {
        "from": source,
        "topics": topics,
        "groups": groups,
        "delete.topics": "true" if delete_topics else None,
        "max.bytes.per.second": rate,
    }
    settings = [f"warmlog.mirror.{name}={value}" for name, value in chosen.items() if value is not None]
    serve_with(assignments=(*assignments, *settings), **options)


def is_given(context: click.Context, name: str) -> bool:
    """Return whether a parameter is given on the command line."""
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
