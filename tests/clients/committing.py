"""Commits of offsets through librdkafka, which gives up before a coordinator that has just been created serves."""

from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.clients.waiting import until

LATER = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
}


def commit(bootstrap: str, group: str, *offsets: TopicPartition) -> None:
    """Commit offsets of a group without members."""
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group})) as consumer:
        until(lambda: _is_committed(consumer, offsets), lambda: None, f"a commit of group {group}")


def _is_committed(consumer: Consumer, offsets: tuple[TopicPartition, ...]) -> bool:
    try:
        consumer.commit(offsets=list(offsets), asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() not in LATER:
            raise
        return False
    return True
