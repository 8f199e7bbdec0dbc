"""Send requests to the brokers of a cluster over Kafka's protocol, one at a time, with blocking sockets.

Requests and responses are fields in the mapping form of Kafka's tables (`protocol/kafka/messages`).
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep
from typing import Any, TypeAlias

import click

from warmlog.cli.connection.login import Login, login_from
from warmlog.cli.connection.tls import context_from
from warmlog.cli.failure import Failure
from warmlog.cli.options import Command, bootstrap
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.codec.schema import LAST_VERSION
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsRequest
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.kafka.peer import PeerApi, PeerProtocol
from warmlog.protocol.kafka.peer_apis import API_VERSIONS, METADATA
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.response import MetadataResponse
from warmlog.protocol.scram import SaslError
from warmlog.protocol.version import VERSION

Fields: TypeAlias = Mapping[str, Any]

DEFAULT_KAFKA = "127.0.0.1:9092"
TIMEOUT_S = 30.0
TIMEOUT_MS = 20_000  # time limit for the broker
RETRY_S = 0.1
MAX_RESPONSE_BYTES = 100 << 20


def _api(key: int) -> PeerApi[Fields, Fields]:
    return PeerApi(API_BY_KEY[key], 0, LAST_VERSION, bound=False)


SASL_HANDSHAKE: PeerApi[Fields, Fields] = PeerApi(API_BY_KEY[17], 1, 1, bound=False)
SASL_AUTHENTICATE = _api(36)
DELETE_RECORDS = _api(21)
DESCRIBE_ACLS = _api(29)
CREATE_ACLS = _api(30)
DELETE_ACLS = _api(31)
DESCRIBE_CONFIGS = _api(32)
ALTER_LOG_DIRS = _api(34)
DESCRIBE_LOG_DIRS = _api(35)
ELECT_LEADERS = _api(43)
INCREMENTAL_ALTER_CONFIGS = _api(44)
ALTER_REASSIGNMENTS = _api(45)
LIST_REASSIGNMENTS = _api(46)
DESCRIBE_QUOTAS = _api(48)
ALTER_QUOTAS = _api(49)
DESCRIBE_CREDENTIALS = _api(50)
ALTER_CREDENTIALS = _api(51)
UNREGISTER_BROKER = _api(64)


def kafka_option(command: Command) -> Command:
    """Add `--kafka H:P`: the broker to connect to."""
    return click.option(
        "--kafka",
        metavar="H:P",
        type=bootstrap,
        envvar="WARMLOG_KAFKA",
        default=DEFAULT_KAFKA,
        show_default=True,
        show_envvar=True,
        help="Address of a broker's Kafka listener.",
    )(command)


class _Connection:
    """A connection to one broker. All methods raise Failure."""

    def __init__(self, host: str, port: int) -> None:
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._protocol = PeerProtocol(f"warmlog-{VERSION}")
        try:
            self._socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
            if (tls := context_from(os.environ)) is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            while not self._protocol.is_ready:
                self.ask(API_VERSIONS, ApiVersionsRequest(software_name="warmlog", software_version=VERSION))
            self._log_in(login_from(os.environ))
        except Failure:
            self.close()
            raise
        except OSError as error:
            raise Failure(f"cannot connect to {self._address}: {error.strerror or error}") from error

    def _log_in(self, login: Login | None) -> None:
        if login is None:
            return
        begun = self.ask(SASL_HANDSHAKE, {"mechanism": login.mechanism})
        if begun["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise Failure(f"{self._address} does not enable {login.mechanism}, but {', '.join(begun['mechanisms'])}")
        if begun["error_code"] == ErrorCode.ILLEGAL_SASL_STATE:
            raise Failure(f"{self._address}: the listener has no SASL: connect without --user")
        _check_login(begun)
        try:
            tokens = login.messages()
            token = next(tokens)
            while True:
                answer = self.ask(SASL_AUTHENTICATE, {"auth_bytes": token})
                _check_login(answer)
                token = tokens.send(bytes(answer["auth_bytes"]))
        except StopIteration:
            return
        except SaslError as error:
            raise Failure(f"{self._address}: {error}") from None

    def ask(self, api: PeerApi[Any, Any], request: Any) -> Any:
        """Send a request and return the response."""
        try:
            self._socket.sendall(self._protocol.send(api, request)[1])
            size = int.from_bytes(self._read(4))
            if size > MAX_RESPONSE_BYTES:
                raise Failure(
                    f"no Kafka listener at {self._address}: is it the native one? (--native is another option)"
                )
            frame = memoryview(self._read(size))
            return self._protocol.decode(self._protocol.match(frame), frame)
        except (TimeoutError, EOFError) as error:
            reason = str(error) or "the broker closed the connection"
            raise Failure(
                f"no reply from {self._address}: {reason}; is it the Kafka listener, without --tls-ca and login?"
            ) from error
        except ProtocolError as error:
            hint = "" if self._protocol.is_ready else "no Kafka listener (--native is for the native one): "
            raise Failure(f"{self._address}: {hint}{error}") from error
        except OSError as error:
            raise Failure(f"connection to {self._address} lost: {error.strerror or error}") from error

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


def _check_login(response: Fields) -> None:
    problem = problem_of(response)
    if problem is not None:
        raise Failure(problem)


class KafkaCluster:
    """The brokers of a cluster. All methods raise Failure."""

    def __init__(self, first: _Connection, stack: ExitStack) -> None:
        self._first = first
        self._stack = stack
        self._connections: dict[int, _Connection] = {}
        self.metadata = self._ask_metadata()

    def _ask_metadata(self) -> MetadataResponse:
        metadata: MetadataResponse = self._first.ask(METADATA, KafkaMetadataRequest(topics=None))
        return metadata

    def ask_controller(self, api: PeerApi[Fields, Fields], request: Fields) -> Fields:
        """Send a request to the controller; Kafka's brokers forward it."""
        return self.ask_broker(self.metadata.controller, api, request)

    def ask_broker(self, node_id: int, api: PeerApi[Fields, Fields], request: Fields) -> Fields:
        """Send a request to a broker. Raises the response's top-level error."""
        if node_id not in self._connections:
            brokers = {broker.node_id: broker for broker in self.metadata.brokers}
            if node_id not in brokers:
                raise Failure(
                    f"broker {node_id} is not in the cluster, which has {', '.join(map(str, sorted(brokers)))}"
                )
            self._connections[node_id] = _connected(brokers[node_id].host, brokers[node_id].port, self._stack)
        response: Fields = self._connections[node_id].ask(api, request)
        problem = problem_of(response)
        if problem is not None:
            raise Failure(problem)
        return response

    def replicas(self) -> dict[TopicPartition, tuple[int, ...]]:
        """Return the replicas of every partition, preferred leader first."""
        return {
            (topic.name, partition.partition): tuple(partition.replicas or ())
            for topic in self.metadata.topics
            for partition in topic.partitions
        }

    def ask_leader(
        self,
        topic: str,
        partition: int,
        api: PeerApi[Fields, Fields],
        request: Fields,
        result_of: Callable[[Fields], Fields],
    ) -> Fields:
        """Send a request to a partition's leader; return the partition's result. Waits for an election to finish."""
        ends_at = monotonic() + TIMEOUT_S
        while True:
            result = result_of(self.ask_broker(self.leader(topic, partition), api, request))
            if result["error_code"] != ErrorCode.NOT_LEADER_OR_FOLLOWER or monotonic() > ends_at:
                return result
            sleep(RETRY_S)
            self.metadata = self._ask_metadata()

    def leader(self, topic: str, partition: int) -> int:
        """Return a partition's leader."""
        for known in self.metadata.topics:
            for info in known.partitions:
                if (known.name, info.partition) == (topic, partition):
                    if info.leader < 0:
                        raise Failure(f"{topic}-{partition} has no leader")
                    return info.leader
        raise Failure(f"no partition {partition} of a topic {topic!r}")


@contextmanager
def kafka_cluster(addresses: str) -> Iterator[KafkaCluster]:
    """Connect to the first of these addresses that responds. Raises Failure."""
    from warmlog.client.settings import parse_bootstrap  # validated by `kafka_option`

    with ExitStack() as stack:
        failure: Failure | None = None
        for host, port in parse_bootstrap(addresses):
            try:
                first = _connected(host, port, stack)
            except Failure as problem:
                failure = failure or problem
            else:
                yield KafkaCluster(first, stack)
                return
        raise failure or Failure("no broker address given")


def _connected(host: str, port: int, stack: ExitStack) -> _Connection:
    connection = _Connection(host, port)
    stack.callback(connection.close)
    return connection


def problem_of(fields: Fields) -> str | None:
    """Return the error of a response or of one of its entries as text, or None if there is no error."""
    code = fields.get("error_code", 0)
    if not code:
        return None
    known = code in ErrorCode._value2member_map_
    return fields.get("error_message") or (ErrorCode(code).name if known else f"error {code}")


def by_topic(partitions: Mapping[TopicPartition, Any]) -> dict[str, list[tuple[int, Any]]]:
    """Group partitions by topic."""
    topics: dict[str, list[tuple[int, Any]]] = {}
    for (topic, partition), value in sorted(partitions.items()):
        topics.setdefault(topic, []).append((partition, value))
    return topics
