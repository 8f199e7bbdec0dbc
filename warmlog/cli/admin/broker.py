"""`warmlog broker remove`: remove the registration of a broker."""

import click

from warmlog.cli.admin.kafka_cluster import UNREGISTER_BROKER, kafka_cluster, kafka_option
from warmlog.cli.failure import Failure
from warmlog.cli.output import counted, print_line


@click.command(short_help="Remove a broker that will not return.")
@click.argument("broker", type=click.IntRange(min=0))
@click.option("--force", is_flag=True, help="Remove it even if it has replicas, which are then left without a broker.")
@kafka_option
def remove(broker: int, force: bool, kafka: str) -> None:
    """Remove a broker that will not return, so that it gets no replicas of new topics.

    First stop it and move its replicas to others, with `warmlog partition move --replace OLD=NEW`.
    """
    with kafka_cluster(kafka) as cluster:
        held = sum(broker in replicas for replicas in cluster.replicas().values())
        if held and not force:
            raise Failure(
                f"broker {broker} has replicas of {counted(held, 'partition')}: move them first"
                f" (`warmlog partition move --replace {broker}=NEW`), or add --force"
            )
        cluster.ask_controller(UNREGISTER_BROKER, {"broker_id": broker})
    print_line(f"broker {broker} removed")
