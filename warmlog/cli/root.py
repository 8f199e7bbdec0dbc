"""The tables of commands, the options of `warmlog` itself, and shell completion."""

import click

from warmlog.cli.command_groups import DefaultGroup, LazyGroup, RootGroup
from warmlog.cli.connection.login import use_delegation_token, use_login
from warmlog.cli.connection.tls import use_file
from warmlog.cli.profiles import use_profile
from warmlog.protocol.version import VERSION

COMMANDS = {
    "serve": ("warmlog.cli.serve", "serve", "Run a broker, or several as a cluster on this machine."),
    "topic": ("warmlog.cli.root", "topic", "Create, list, describe, alter and delete topics."),
    "produce": ("warmlog.cli.records.produce", "produce", "Send the lines of standard input to a topic."),
    "consume": ("warmlog.cli.records.consume", "consume", "Print the records of a topic."),
    "group": ("warmlog.cli.root", "group", "List, describe, reset and delete consumer groups."),
    "share": ("warmlog.cli.root", "share", "Take jobs from queues; describe, reset and delete share groups."),
    "cluster": ("warmlog.cli.root", "cluster", "Describe the brokers of a cluster and their partitions."),
    "partition": ("warmlog.cli.root", "partition", "Move replicas between brokers and disks; elect leaders."),
    "broker": ("warmlog.cli.root", "broker", "Show data directories; remove a broker that will not return."),
    "user": ("warmlog.cli.root", "user", "Create, list and delete users that log in with a password."),
    "config": ("warmlog.cli.root", "config", "Show and change settings of topics, brokers and groups."),
    "acl": ("warmlog.cli.root", "acl", "List, add and remove access control lists."),
    "audit-log": ("warmlog.cli.security.audit_log", "audit_log", "Read the audit log of a broker."),
    "quota": ("warmlog.cli.root", "quota", "List, set and remove quotas of users, clients and addresses."),
    "records": ("warmlog.cli.root", "records", "Delete records of a partition before an offset."),
    "mirror": ("warmlog.cli.mirror", "mirror", "Mirror topics of another cluster; promote the copies."),
    "tls": ("warmlog.cli.root", "tls", "Make certificates for encrypted connections."),
    "transaction": ("warmlog.cli.root", "transaction", "List, describe and abort transactions; find hanging ones."),
    "log": ("warmlog.cli.root", "log", "Inspect and repair the files of a data directory, with or without a broker."),
    "tour": ("warmlog.cli.tour", "tour", "Create a topic whose index is not in memory, for the console's tour."),
    "pipeline": ("warmlog.cli.root", "pipeline", "Count, copy, replay and audit records, with or without Spark."),
    "completion": ("warmlog.cli.root", "completion", "Print the script that completes `warmlog` in a shell."),
}

TOPIC_COMMANDS = {
    "create": ("warmlog.cli.topic", "create", "Create topics."),
    "list": ("warmlog.cli.topic", "list_topics", "List topics."),
    "describe": ("warmlog.cli.topic", "describe", "Show segments, sizes, offsets, times and settings of topics."),
    "alter": ("warmlog.cli.topic", "alter", "Change a topic's settings, or add partitions."),
    "delete": ("warmlog.cli.topic", "delete", "Delete topics and their data."),
}

GROUP_COMMANDS = {
    "list": ("warmlog.cli.group", "list_groups", "List groups."),
    "describe": ("warmlog.cli.group", "describe", "Show members, offsets and lag of groups."),
    "reset": ("warmlog.cli.group", "reset", "Reset the committed offsets of a group."),
    "delete": ("warmlog.cli.group", "delete", "Delete groups and their committed offsets."),
}

SHARE_COMMANDS = {
    "consume": (
        "warmlog.cli.share.consume",
        "consume",
        "Take jobs from a queue: print them, or run a program for each.",
    ),
    "describe": ("warmlog.cli.group", "describe", "Show members, start offsets and lag of groups."),
    "reset": ("warmlog.cli.share.reset", "reset", "Set the start offsets of a share group."),
    "delete": ("warmlog.cli.group", "delete", "Delete groups and their state."),
    "dead-letters": ("warmlog.cli.share.dead_letters", "show", "Show the dead letters in a topic."),
    "redrive": ("warmlog.cli.share.dead_letters", "redrive", "Produce the records of dead letters again."),
}

CLUSTER_COMMANDS = {
    "describe": (
        "warmlog.cli.cluster",
        "describe",
        "Show brokers, leaders, in-sync replicas, and under-replicated partitions.",
    ),
    "secrets": (
        "warmlog.cli.security.shared",
        "make",
        "Make the certificates and passwords that secured brokers share.",
    ),
}

PARTITION_COMMANDS = {
    "move": ("warmlog.cli.admin.partition", "move", "Move replicas of partitions to other brokers."),
    "moves": ("warmlog.cli.admin.partition", "moves", "List unfinished moves."),
    "relocate": (
        "warmlog.cli.admin.directories",
        "relocate",
        "Move a partition to another data directory of its broker.",
    ),
    "elect": (
        "warmlog.cli.admin.partition",
        "elect",
        "Elect preferred replicas, or a replica that is not in sync.",
    ),
}

BROKER_COMMANDS = {
    "directories": (
        "warmlog.cli.admin.directories",
        "directories",
        "Show the data directories of brokers, and partitions being moved to them.",
    ),
    "remove": ("warmlog.cli.admin.broker", "remove", "Remove a broker that will not return."),
}

USER_COMMANDS = {
    "create": ("warmlog.cli.admin.user", "create", "Create a user, or change its password."),
    "list": ("warmlog.cli.admin.user", "list_users", "List users and their mechanisms."),
    "delete": ("warmlog.cli.admin.user", "delete", "Delete a user."),
}

CONFIG_COMMANDS = {
    "show": ("warmlog.cli.admin.config", "show", "Show the settings of a topic, a broker or a group."),
    "set": ("warmlog.cli.admin.config", "set_configs", "Change settings without a restart."),
    "unset": ("warmlog.cli.admin.config", "unset", "Reset settings to their defaults."),
}

ACL_COMMANDS = {
    "list": ("warmlog.cli.admin.acl", "list_acls", "List ACLs."),
    "add": ("warmlog.cli.admin.acl", "add", "Allow or deny operations on resources."),
    "remove": ("warmlog.cli.admin.acl", "remove", "Remove ACLs."),
}

QUOTA_COMMANDS = {
    "list": ("warmlog.cli.admin.quota", "list_quotas", "List quotas."),
    "set": ("warmlog.cli.admin.quota", "set_quotas", "Set quotas."),
    "remove": ("warmlog.cli.admin.quota", "remove", "Remove quotas."),
}

RECORDS_COMMANDS = {
    "delete": ("warmlog.cli.admin.records", "delete", "Delete the records of a partition before an offset."),
}

TLS_COMMANDS = {
    "create": (
        "warmlog.cli.security.certificates",
        "create",
        "Make a certificate authority, and certificates for brokers and clients.",
    ),
}

TRANSACTION_COMMANDS = {
    "list": ("warmlog.cli.transaction", "list_transactions", "List transactional ids."),
    "describe": ("warmlog.cli.transaction", "describe", "Show states, producers and partitions of transactional ids."),
    "abort": ("warmlog.cli.transaction", "abort", "Abort an open transaction, or one that hangs in a partition."),
    "find-hanging": ("warmlog.cli.transaction", "find_hanging", "Find transactions that no coordinator will end."),
}

LOG_COMMANDS = {
    "dump": ("warmlog.cli.log.dump", "dump", "Print the batches, records and index entries of segment files."),
    "verify": ("warmlog.cli.log.verify", "verify", "Check partition directories without writing."),
    "explain": (
        "warmlog.cli.log.explain",
        "explain",
        "Explain how a fetch would be served: index pages, resident pages, faults.",
    ),
    "residency": ("warmlog.cli.log.residency", "residency", "Show which parts of segments are in the page cache."),
    "receipts": ("warmlog.cli.log.receipts", "receipts", "Show what recovery did after unclean stops."),
    "repair": ("warmlog.cli.log.repair", "repair", "Recover a data directory without starting a broker."),
}

PIPELINE_COMMANDS = {
    "count": ("warmlog.cli.pipeline.count", "count", "Count records from batch headers only."),
    "table": (
        "warmlog.cli.root",
        "table",
        "Copy a topic to a Delta or Iceberg table, exactly once; maintain tables.",
    ),
    "replay": (
        "warmlog.cli.pipeline.replay",
        "replay",
        "Send records of a table or a topic to a topic.",
    ),
    "audit": ("warmlog.cli.pipeline.audit", "audit", "Account for every offset of a topic, or of a table."),
    "compact-report": ("warmlog.cli.pipeline.audit", "compact_report", "Estimate what compaction would save."),
}

TABLE_COMMANDS = {
    "copy": (
        "warmlog.cli.pipeline.table",
        "table",
        "Copy a topic to a table; the default, so the name can be left out.",
    ),
    "migrate": (
        "warmlog.cli.pipeline.migrate",
        "migrate",
        "Convert an archive of an earlier version to a Delta table.",
    ),
    "maintain": (
        "warmlog.cli.pipeline.maintain",
        "maintain",
        "Merge small files, expire versions, delete unneeded files.",
    ),
    "rewind": (
        "warmlog.cli.pipeline.rewind",
        "rewind",
        "Copy again what a restore or rollback of a table took back.",
    ),
}


def print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Print the version and exit."""
    if value and not context.resilient_parsing:
        click.echo(f"warmlog {VERSION}")
        context.exit()


VERSION_OPTION = click.Option(
    ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=print_version, help="Print the version."
)
PROFILE_OPTION = click.Option(
    ["--profile"],
    metavar="NAME",
    envvar="WARMLOG_PROFILE",
    show_envvar=True,
    expose_value=False,
    is_eager=True,  # processed early, since other options override it
    callback=use_profile,
    help="Connect to the addresses of this profile in ~/.config/warmlog/profiles.toml.",
)
TLS_OPTIONS = [
    click.Option(
        ["--tls-ca"],
        metavar="FILE",
        expose_value=False,
        callback=use_file,
        help="Encrypt connections, and trust the CAs in this PEM file; `system` trusts the system's CAs. "
        "[env var: WARMLOG_TLS_CA]",
    ),
    click.Option(
        ["--tls-certificate"],
        metavar="FILE",
        expose_value=False,
        callback=use_file,
        help="Present the certificate in this PEM file, which must also contain its key. "
        "[env var: WARMLOG_TLS_CERTIFICATE]",
    ),
]

LOGIN_OPTIONS = [
    click.Option(
        ["--user"],
        metavar="NAME",
        expose_value=False,
        callback=use_login,
        help="Log in as this user. [env var: WARMLOG_USER]",
    ),
    click.Option(
        ["--password-file"],
        metavar="FILE",
        expose_value=False,
        callback=use_login,
        help="File with the user's password in its first line; not every user of the machine may read it. "
        "[env var: WARMLOG_PASSWORD_FILE, or WARMLOG_PASSWORD with the password]",
    ),
    click.Option(
        ["--mechanism"],
        metavar="NAME",
        expose_value=False,
        callback=use_login,
        help="SASL mechanism: SCRAM-SHA-512 (the default), SCRAM-SHA-256 or PLAIN; OAUTHBEARER with a token. "
        "[env var: WARMLOG_SASL_MECHANISM]",
    ),
    click.Option(
        ["--delegation-token"],
        is_flag=True,
        expose_value=False,
        callback=use_delegation_token,
        help="The user and the password are the id and the HMAC of a delegation token. "
        "[env var: WARMLOG_DELEGATION_TOKEN=true]",
    ),
    click.Option(
        ["--token-file"],
        metavar="FILE",
        expose_value=False,
        callback=use_login,
        help="Log in with the access token in this file, which is read for each connection. "
        "[env var: WARMLOG_TOKEN_FILE, or WARMLOG_TOKEN with the token]",
    ),
]

root = RootGroup(
    name="warmlog",
    table=COMMANDS,
    params=[VERSION_OPTION, PROFILE_OPTION, *TLS_OPTIONS, *LOGIN_OPTIONS],
    help="A log broker: Kafka's storage engine, started in half a second.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
topic = LazyGroup(name="topic", table=TOPIC_COMMANDS, help="Create, list, describe, alter and delete topics.")
cluster = LazyGroup(
    name="cluster", table=CLUSTER_COMMANDS, help="Describe the brokers of a cluster; make the secrets they share."
)
partition = LazyGroup(
    name="partition", table=PARTITION_COMMANDS, help="Move replicas between brokers and disks; elect leaders."
)
broker = LazyGroup(
    name="broker", table=BROKER_COMMANDS, help="Show data directories; remove a broker that will not return."
)
user = LazyGroup(name="user", table=USER_COMMANDS, help="Create, list and delete users that log in with a password.")
config = LazyGroup(name="config", table=CONFIG_COMMANDS, help="Show and change settings of topics, brokers and groups.")
acl = LazyGroup(name="acl", table=ACL_COMMANDS, help="List, add and remove access control lists.")
quota = LazyGroup(
    name="quota", table=QUOTA_COMMANDS, help="List, set and remove quotas of users, clients and addresses."
)
records = LazyGroup(name="records", table=RECORDS_COMMANDS, help="Delete records of a partition before an offset.")
group = LazyGroup(name="group", table=GROUP_COMMANDS, help="List, describe, reset and delete consumer groups.")
share = LazyGroup(
    name="share", table=SHARE_COMMANDS, help="Take jobs from queues; describe, reset and delete share groups."
)
tls = LazyGroup(name="tls", table=TLS_COMMANDS, help="Make certificates for encrypted connections.")
transaction = LazyGroup(
    name="transaction", table=TRANSACTION_COMMANDS, help="List, describe and abort transactions; find hanging ones."
)
log = LazyGroup(
    name="log", table=LOG_COMMANDS, help="Inspect and repair the files of a data directory, with or without a broker."
)
pipeline = LazyGroup(
    name="pipeline",
    table=PIPELINE_COMMANDS,
    removed={
        "archive": "Use `warmlog pipeline table TOPIC DIR --until-end`; for an archive that exists, first"
        " `warmlog pipeline table migrate DIR`."
    },
    help="Run jobs over partition directories and brokers, with or without Spark.",
)

table = DefaultGroup(
    name="table",
    table=TABLE_COMMANDS,
    default="copy",
    help="Copy a topic to a Delta or Iceberg table, or maintain a table.\n\n"
    "`warmlog pipeline table TOPIC TARGET` is short for `warmlog pipeline table copy TOPIC TARGET`.",
)


@click.command(short_help="Print the script that completes `warmlog` in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes `warmlog` in a shell.

    \b
    bash:  eval "$(warmlog completion bash)"      in ~/.bashrc
    zsh:   eval "$(warmlog completion zsh)"       in ~/.zshrc
    fish:  warmlog completion fish > ~/.config/fish/completions/warmlog.fish
    """
    from click.shell_completion import get_completion_class  # imported only by this command

    completer = get_completion_class(shell)
    assert completer is not None, "click supports every shell of the Choice"
    click.echo(completer(context.find_root().command, {}, "warmlog", "_WARMLOG_COMPLETE").source())
