"""`warmlog partition`: move replicas between brokers, and elect leaders."""

from collections.abc import Iterable, Mapping

import click

from warmlog.cli.admin.kafka_cluster import (
    ALTER_REASSIGNMENTS,
    ELECT_LEADERS,
    LIST_REASSIGNMENTS,
    TIMEOUT_MS,
    KafkaCluster,
    by_topic,
    kafka_cluster,
    kafka_option,
    problem_of,
)
from warmlog.cli.failure import Failure
from warmlog.cli.options import complete_topics, json_option
from warmlog.cli.output import Column, counted, print_json, print_line, print_table
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition

MOVE_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("replicas"),
    Column("adding"),
    Column("removing"),
)
PREFERRED, UNCLEAN = 0, 1
NOTHING_TO_DO = {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED}


def broker_ids(value: str) -> tuple[int, ...]:
    """Parse `1,2,3`."""
    try:
        ids = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of broker ids like 1,2,3.") from None
    if len(set(ids)) < len(ids) or min(ids) < 0:
        raise click.BadParameter(f"{value!r} names a broker twice, or a negative id.")
    return ids


@click.command(short_help="Move replicas of partitions to other brokers.")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.argument("partition", required=False, type=click.IntRange(min=0))
@click.option("--to", "brokers", metavar="IDS", type=broker_ids, help="The brokers, such as 1,2,3.")
@click.option(
    "--replace",
    "replaced",
    metavar="OLD=NEW",
    help="Move the replicas of one broker to another, in all topics or in TOPIC.",
)
@click.option("--cancel", is_flag=True, help="Cancel moves that have not finished.")
@click.option("--dry-run", is_flag=True, help="Print the moves without starting them.")
@kafka_option
@json_option("One JSON object per partition: topic, partition, before, after.")
def move(
    topic: str | None,
    partition: int | None,
    brokers: tuple[int, ...] | None,
    replaced: str | None,
    cancel: bool,
    dry_run: bool,
    kafka: str,
    as_json: bool,
) -> None:
    """Move replicas of partitions to other brokers.

    With TOPIC, PARTITION and --to, the partition's replicas move to these brokers; the first one is the preferred
    leader. With TOPIC and --to, all partitions of the topic are spread over these brokers, with the same number of
    replicas as before. --replace moves the replicas of a broker, which may be dead, to another one.

    Old replicas remain until the new ones are in sync; `warmlog partition moves` lists unfinished moves.
    """
    if (brokers is not None) + (replaced is not None) + cancel != 1:
        raise click.UsageError("Give one of --to, --replace and --cancel.")
    if brokers is not None and topic is None:
        raise click.UsageError("--to needs a TOPIC.")
    with kafka_cluster(kafka) as cluster:
        before = _chosen(cluster.replicas(), topic, partition)
        after: Mapping[TopicPartition, tuple[int, ...] | None]
        if cancel:
            moving = _moves(cluster)
            after = {key: None for key in before if key in moving}
        elif replaced is not None:
            after = replace_broker(before, *_old_and_new(replaced))
        else:
            assert brokers is not None
            after = dict.fromkeys(before, brokers) if partition is not None else spread(before, brokers)
        after = {key: replicas for key, replicas in after.items() if replicas != before[key]}
        if not dry_run and after:
            _move(cluster, after)
    if as_json:
        print_json(
            *(
                {"topic": name, "partition": n, "before": before[name, n], "after": to}
                for (name, n), to in after.items()
            )
        )
        return
    for (name, number), replicas in after.items():
        goal = "cancelled" if replicas is None else f"to {_ids(replicas)}"
        print_line(f"{name}-{number}: {_ids(before[name, number])} {goal}")
    done = "cancelled" if cancel else "would be moved" if dry_run else "being moved"
    print_line(f"{counted(len(after), 'partition')} {done}")


@click.command("moves", short_help="List unfinished moves.")
@kafka_option
@json_option("One JSON object per partition: topic, partition, replicas, adding, removing.")
def moves(kafka: str, as_json: bool) -> None:
    """List unfinished moves."""
    with kafka_cluster(kafka) as cluster:
        ongoing = _moves(cluster)
    if as_json:
        names = ("replicas", "adding", "removing")
        print_json(
            *(
                {"topic": topic, "partition": n, **dict(zip(names, sets, strict=True))}
                for (topic, n), sets in ongoing.items()
            )
        )
        return
    if ongoing:
        print_table(MOVE_COLUMNS, [(topic, n, *map(_ids, sets)) for (topic, n), sets in ongoing.items()])
    print_line(f"{counted(len(ongoing), 'partition')} being moved")


@click.command(short_help="Elect preferred replicas, or a replica that is not in sync.")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.argument("partition", required=False, type=click.IntRange(min=0))
@click.option(
    "--unclean", is_flag=True, help="Elect a replica that is not in sync if there is no other: records can be lost."
)
@kafka_option
@json_option("One JSON object per partition: topic, partition, elected.")
def elect(topic: str | None, partition: int | None, unclean: bool, kafka: str, as_json: bool) -> None:
    """Elect leaders of all partitions, of a topic's partitions, or of one partition.

    The preferred replica, a partition's first, becomes the leader if it is in sync. --unclean is for partitions without
    a leader whose in-sync replicas are all lost: another replica becomes the leader, and the records it lacks are lost.
    """
    if unclean and topic is None:
        raise click.UsageError("--unclean needs a TOPIC.")
    with kafka_cluster(kafka) as cluster:
        chosen = _chosen(cluster.replicas(), topic, partition)
        request = {
            "election_type": UNCLEAN if unclean else PREFERRED,
            "topic_partitions": tuple(
                {"topic": name, "partitions": tuple(number for number, _ in numbers)}
                for name, numbers in by_topic(chosen).items()
            ),
            "timeout_ms": TIMEOUT_MS,
        }
        response = cluster.ask_controller(ELECT_LEADERS, request)
    problems: dict[TopicPartition, str] = {}
    elected: list[TopicPartition] = []
    for result in response["replica_election_results"]:
        for outcome in result["partition_result"]:
            key = result["topic"], outcome["partition_id"]
            if outcome["error_code"] not in NOTHING_TO_DO:
                problems[key] = problem_of(outcome) or ""
            elif not outcome["error_code"]:
                elected.append(key)
    if as_json:
        print_json(*({"topic": name, "partition": n, "elected": (name, n) in elected} for name, n in sorted(chosen)))
    else:
        for name, number in sorted(elected):
            print_line(f"{name}-{number}: leader elected")
        print_line(f"{counted(len(elected), 'leader')} elected")
    _raise_problems(problems)


def spread(
    before: Mapping[TopicPartition, tuple[int, ...]], brokers: tuple[int, ...]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Assign partitions to brokers in turn, each with the same number of replicas as before. Raises Failure."""
    after = {}
    for position, (key, replicas) in enumerate(sorted(before.items())):
        if len(replicas) > len(brokers):
            raise Failure(f"{key[0]} has {counted(len(replicas), 'replica')} of each partition: name as many brokers")
        # As in Kafka, the distance to the further replicas grows after each round over the brokers.
        shift = 1 + position // len(brokers) % max(len(brokers) - 1, 1)
        first = position % len(brokers)
        others = [(first + (shift + n) % max(len(brokers) - 1, 1) + 1) % len(brokers) for n in range(len(replicas) - 1)]
        after[key] = tuple(brokers[index] for index in (first, *others))
    return after


def replace_broker(
    before: Mapping[TopicPartition, tuple[int, ...]], old: int, new: int
) -> dict[TopicPartition, tuple[int, ...]]:
    """Replace one broker by another. Raises Failure if the new one already has a replica."""
    after = {}
    for key, replicas in before.items():
        if old in replicas:
            if new in replicas:
                raise Failure(f"{key[0]}-{key[1]}: broker {new} has a replica already; move this partition by itself")
            after[key] = tuple(new if broker == old else broker for broker in replicas)
    return after


def _old_and_new(value: str) -> tuple[int, int]:
    try:
        old, new = map(int, value.split("="))
    except ValueError:
        raise click.UsageError(f"--replace {value}: expected broker ids like 3=5.") from None
    return old, new


def _chosen(
    replicas: Mapping[TopicPartition, tuple[int, ...]], topic: str | None, partition: int | None
) -> dict[TopicPartition, tuple[int, ...]]:
    chosen = {key: value for key, value in replicas.items() if topic in {None, key[0]} and partition in {None, key[1]}}
    if not chosen and topic is not None:
        raise Failure(f"no topic {topic!r}" if partition is None else f"no partition {partition} of a topic {topic!r}")
    return chosen


def _move(cluster: KafkaCluster, after: Mapping[TopicPartition, tuple[int, ...] | None]) -> None:
    request = {
        "timeout_ms": TIMEOUT_MS,
        "allow_replication_factor_change": True,
        "topics": tuple(
            {
                "name": topic,
                "partitions": tuple({"partition_index": n, "replicas": replicas} for n, replicas in numbers),
            }
            for topic, numbers in by_topic(after).items()
        ),
    }
    response = cluster.ask_controller(ALTER_REASSIGNMENTS, request)
    problems = {
        (topic["name"], entry["partition_index"]): problem
        for topic in response["responses"]
        for entry in topic["partitions"]
        if (problem := problem_of(entry)) is not None
    }
    _raise_problems(problems)


def _moves(cluster: KafkaCluster) -> dict[TopicPartition, tuple[tuple[int, ...], ...]]:
    response = cluster.ask_controller(LIST_REASSIGNMENTS, {"timeout_ms": TIMEOUT_MS, "topics": None})
    return {
        (topic["name"], entry["partition_index"]): (
            tuple(entry["replicas"]),
            tuple(entry["adding_replicas"]),
            tuple(entry["removing_replicas"]),
        )
        for topic in response["topics"]
        for entry in topic["partitions"]
    }


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _raise_problems(problems: Mapping[TopicPartition, str]) -> None:
    if problems:
        (topic, partition), problem = next(iter(problems.items()))
        more = f" (and {len(problems) - 1:,} more partitions)" if len(problems) > 1 else ""
        raise Failure(f"{topic}-{partition}: {problem}{more}")
