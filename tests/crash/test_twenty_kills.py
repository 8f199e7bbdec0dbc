"""A broker that is killed twenty times at any moment, also while it starts, under one producer and one group.

Every record is there once, unchanged and in its order, and no commit that was acknowledged is taken back.
"""

import threading
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.crash.test_idempotent_producer import (
    PARTITIONS,
    Relay,
    Sending,
    broker_process,
    kill,
    numbers_in,
    spawn,
)

ROUNDS = 20
WAIT_S = 10


class Committing:
    """Commits rising offsets for a group, one after the other, and asks now and then which one is known."""

    def __init__(self, port: int) -> None:
        self.acknowledged = 0
        self.failure: str | None = None
        self.told = threading.Event()  # an answer came, or a failure
        self._over = threading.Event()
        self._consumer = Consumer({
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "g",
            "enable.auto.commit": False,
            "log_level": 0,
            "socket.timeout.ms": 2000,  # what was asked of a broker that was killed is given up, and asked again
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 5,
            "error_cb": lambda _: None,
        })  # fmt: skip
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sent = 0
        while not self._over.is_set() and self.failure is None:
            sent += 1
            try:
                self._consumer.commit(offsets=[TopicPartition("orders", 0, sent)], asynchronous=False)
                self.acknowledged = sent
                if sent % 5 == 0:
                    self._ask(sent)
            except KafkaException:
                continue  # the broker has just gone

    def _ask(self, sent: int) -> None:
        (found,) = self._consumer.committed([TopicPartition("orders", 0)], timeout=WAIT_S)
        if not self.acknowledged <= found.offset <= sent:
            self.failure = f"{found.offset} is committed, {self.acknowledged} was acknowledged, {sent} was sent"
        self.told.set()

    def stop(self) -> None:
        """While there is a broker: a commit without one waits for ever."""
        self._over.set()
        self._thread.join()
        self._consumer.close()


def send_for(sending: Sending, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sending.send()


@pytest.mark.interop  # takes many seconds
@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_doubled_or_taken_back_by_twenty_kills(tmp_path: Path) -> None:
    random = Random(20)
    with closing(Relay()) as relay:
        with broker_process(tmp_path, relay):
            sending = Sending(relay.port)
            while not sending.acknowledged:  # the topic is there, and has the partitions that the files are looked for
                sending.send()
        committing = Committing(relay.port)
        for number in range(ROUNDS):
            if number % 4 == 3:  # while it starts, and recovers
                process = spawn(tmp_path, relay)
                send_for(sending, random.uniform(0.1, 0.6))
                kill(process)
            else:
                with broker_process(tmp_path, relay):
                    send_for(sending, random.uniform(0.01, 0.4))
        with broker_process(tmp_path, relay):
            sending.finish()
            acknowledged = committing.acknowledged
            committing.told.clear()
            assert committing.told.wait(WAIT_S)
            committing.stop()
    assert committing.failure is None
    assert acknowledged > ROUNDS
    for partition in range(PARTITIONS):
        assert numbers_in(tmp_path / f"orders-{partition}") == list(range(sending.sent[partition]))
