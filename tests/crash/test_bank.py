"""A bank: transactional producers move money between accounts while brokers and producers are killed or fenced.

A transfer is two records, a debit and a credit, in partitions chosen at random. Whatever happens, a `read_committed`
reader sees both or neither, and once. Between brokers and clients stands a relay, whose address stays.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.test_idempotent_producer import Relay, broker_process

TOPIC, PARTITIONS, TELLERS, KILLS = "transfers", 3, 3, 6
LIMIT_S = 60.0
PATIENT = {"log_level": 0, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 5}


class Posting(NamedTuple):
    """One half of a transfer, as it is stored: transfer, amount."""

    transfer: str
    amount: int


class Books:
    """The result of each transfer that clients saw."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self.defects: list[str] = []

    def __len__(self) -> int:
        return len(self.committed)


class Teller:
    """A transactional producer that is replaced now and then: some of its transactions are aborted, some are fenced."""

    def __init__(self, number: int, port: int, books: Books) -> None:
        self._id, self._port, self._books, self._chance = f"teller-{number}", port, books, Random(number)
        self._over = threading.Event()
        self._count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the present transaction. A broker must be running."""
        self._over.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self._id} waits for ever"

    def _run(self) -> None:
        producer = self._started()
        while not self._over.is_set():
            try:
                kind = self._chance.choices(("commit", "abort", "fence", "vanish"), (14, 3, 1, 1))[0]
                producer = self._transact(producer, kind)
            except KafkaException:
                producer = self._started()  # its transaction is aborted, unless it was decided already

    def _started(self) -> Producer:
        settings: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{self._port}",
            "transactional.id": self._id,
            "linger.ms": 0,
            "error_cb": lambda _: None,
            **PATIENT,
        }
        while True:
            producer = Producer(settings)
            try:
                producer.init_transactions(LIMIT_S)
            except KafkaException:
                continue
            return producer

    def _transact(self, producer: Producer, kind: str) -> Producer:
        producer.begin_transaction()
        transfers = [self._transfer(producer) for _ in range(self._chance.randint(1, 3))]
        if kind == "vanish":
            return self._started()
        if kind == "fence":
            producer.flush(LIMIT_S)
            successor = self._started()
            self._expect_fenced(producer)
            self._tell(self._books.aborted, transfers)
            return successor
        if kind == "abort":
            _repeated(producer.abort_transaction)
            self._tell(self._books.aborted, transfers)
        else:
            _repeated(producer.commit_transaction)
            self._tell(self._books.committed, transfers)
        return producer

    def _transfer(self, producer: Producer) -> str:
        self._count += 1
        name = f"{self._id}/{self._count}"
        amount = self._chance.randint(1, 1000)
        for posting in (Posting(name, -amount), Posting(name, amount)):
            value = f"{posting.transfer} {posting.amount}".encode()
            producer.produce(TOPIC, value, partition=self._chance.randrange(PARTITIONS))
        return name

    def _expect_fenced(self, zombie: Producer) -> None:
        try:
            zombie.commit_transaction(LIMIT_S)
        except KafkaException:
            return
        with self._books.lock:
            self._books.defects.append(f"a fenced producer of {self._id} has committed")

    def _tell(self, told: set[str], transfers: list[str]) -> None:
        with self._books.lock:
            told.update(transfers)


def _repeated(end: Any) -> None:
    """Ask until it is told how the transaction ended, also beyond brokers that are killed."""
    while True:
        try:
            return end(LIMIT_S)
        except KafkaException as refusal:
            if not refusal.args[0].retriable():
                raise


@contextmanager
def reader(port: int) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "auditor",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
            **PATIENT,
        }
    )
    yield consumer
    consumer.close()


def read_all(port: int) -> list[list[Posting]]:
    """The committed postings of each partition, up to its last stable offset at this moment."""
    found: list[list[Posting]] = [[] for _ in range(PARTITIONS)]
    with reader(port) as consumer:
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(LIMIT_S)
            assert message is not None, "no answer"
            error, partition = message.error(), message.partition()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
            else:
                transfer, amount = message.value().decode().split()
                found[partition].append(Posting(transfer, int(amount)))
    return found


def checked(partitions: list[list[Posting]], aborted: set[str]) -> set[Posting]:
    """Check what holds at every moment: nothing twice, nothing aborted. Returns all postings."""
    counts = Counter(posting for postings in partitions for posting in postings)
    assert max(counts.values(), default=1) == 1
    assert not {posting.transfer for posting in counts} & aborted
    return set(counts)


@pytest.mark.interop  # takes many seconds
@pytest.mark.timeout(300)
def test_no_transfer_is_lost_doubled_or_half(tmp_path: Path) -> None:
    chance, books, seen = Random(16), Books(), set[Posting]()
    with closing(Relay()) as relay:
        with broker_process(tmp_path, relay):
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{relay.port}", "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(LIMIT_S)
            tellers = [Teller(number, relay.port, books) for number in range(TELLERS)]
            _until_more(books, chance)
        for _ in range(KILLS):
            with broker_process(tmp_path, relay):
                _until_more(books, chance)
                with books.lock:
                    aborted = set(books.aborted)
                seen |= checked(read_all(relay.port), aborted)
        with broker_process(tmp_path, relay):
            for teller in tellers:
                teller.stop()
            for number in range(TELLERS):  # ends what tellers left open
                Teller(number, relay.port, Books()).stop()
            partitions = read_all(relay.port)
    assert books.defects == []
    found = checked(partitions, books.aborted)
    assert seen <= found, "what was seen once stays"
    amounts: dict[str, list[int]] = {}
    for posting in found:
        amounts.setdefault(posting.transfer, []).append(posting.amount)
    assert not {transfer: halves for transfer, halves in amounts.items() if len(halves) != 2 or sum(halves)}
    assert books.committed <= amounts.keys()
    assert len(books) > KILLS


def _until_more(books: Books, chance: Random) -> None:
    """Wait until some more transfers are committed."""
    wanted = len(books) + chance.randint(1, 60)
    while len(books) < wanted:
        threading.Event().wait(0.005)
