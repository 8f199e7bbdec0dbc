"""`warmlog broker`: the registration of brokers that are gone."""

import click

from warmlog.cli.admin.kafka_cluster import UNREGISTER_BROKER, kafka_cluster, kafka_option
from warmlog.cli.failure import Failure
from warmlog.cli.output import counted, print_line


@click.command(short_help="Forget a broker that is gone for good.")
@click.argument("broker", type=click.IntRange(min=0))
@click.option("--force", is_flag=True, help="Even if it has replicas, which then stay without a broker.")
@kafka_option
def remove(broker: int, force: bool, kafka: str) -> None:
    """Forget a broker that is gone for good: it gets no replicas of new topics.

    Give its replicas to others before, with `warmlog partition move --replace OLD=NEW`, and stop it.
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
