"""The example of docs/native-protocol.md, sent to a real broker as printed."""

import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from warmlog.protocol.frame import LENGTH_SIZE
from warmlog.protocol.native.codec import decode_response, encode_request
from warmlog.protocol.native.groups import JoinConsumerGroupResponse
from warmlog.protocol.native.messages import OPERATIONS
from warmlog.protocol.request import HelloRequest
from warmlog.protocol.response import HelloResponse
from warmlog.testing import Broker

DOCUMENT = (Path(__file__).parents[3] / "docs" / "native-protocol.md").read_text()
STEPS = ("hello", "create_topics", "produce", "fetch")
RESPONSES = {operation.name: operation.received for operation in OPERATIONS}


def hex_block(name: str) -> bytes:
    found = re.search(rf"^```hex {name}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, name
    return bytes.fromhex(re.sub(r"#.*", "", found[1]))


def receive(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = stream.recv(count - len(data))
        assert part, "the broker closed the connection"
        data += part
    return data


def receive_frame(stream: socket.socket) -> bytes:
    length = receive(stream, LENGTH_SIZE)
    return length + receive(stream, struct.unpack(">i", length)[0])


def connection(broker: Broker) -> socket.socket:
    host, port = broker.native.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20)


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_new_broker_answers_the_example_exactly_so(warmlog_broker: Broker, pipelined: bool) -> None:
    with connection(warmlog_broker) as stream:
        replies = []
        if pipelined:
            stream.sendall(b"".join(hex_block(f"request {op}") for op in STEPS))
        for op in STEPS:
            if not pipelined:
                stream.sendall(hex_block(f"request {op}"))
            replies.append(receive_frame(stream))
    for op, reply in zip(STEPS, replies, strict=True):
        printed = hex_block(f"reply {op}")
        if op in {"hello", "create_topics"}:  # the version, cluster id and topic id differ
            assert _without_ids(op, reply) == _without_ids(op, printed)
        else:
            assert reply == printed


def _without_ids(op: str, reply: bytes) -> str:
    _, value = decode_response(reply[LENGTH_SIZE:], RESPONSES[op])
    text = msgspec.json.encode(value).decode()
    return re.sub(r'"(cluster_id|topic_id|broker)":"[^"]+"', "", text)


def test_the_whole_client_of_the_document_works(warmlog_broker: Broker, tmp_path: Path) -> None:
    found = re.search(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found
    program = tmp_path / "example.py"
    program.write_text(found[1])
    host, port = warmlog_broker.native.rsplit(":", 1)
    ran = subprocess.run([sys.executable, program, host, port], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert hex_block("reply fetch")[-14:] == b"\x1a\x00\x00\x00\x04en\x0ahello\x00"
    assert "hello" in ran.stdout.splitlines()[2]
    assert len(ran.stdout.splitlines()) == 3


def test_with_acks_0_there_is_no_reply(warmlog_broker: Broker) -> None:
    produce = hex_block("request produce").replace(b"\xa4acks\xff", b"\xa4acks\x00")
    with connection(warmlog_broker) as stream:
        stream.sendall(hex_block("request hello") + hex_block("request create_topics") + produce)
        stream.sendall(hex_block("request fetch"))
        replies = [receive_frame(stream) for _ in range(3)]
    assert replies[2] == hex_block("reply fetch")


def test_a_request_before_the_hello_is_rejected_and_the_connection_goes_on(warmlog_broker: Broker) -> None:
    with connection(warmlog_broker) as stream:
        stream.sendall(hex_block("request fetch") + hex_block("request hello"))
        _, refused = decode_response(receive_frame(stream)[LENGTH_SIZE:], RESPONSES["fetch"])
        assert "hello" in str(refused)
        _, hello = decode_response(receive_frame(stream)[LENGTH_SIZE:], RESPONSES["hello"])
        assert type(hello) is RESPONSES["hello"]


def test_after_a_length_out_of_range_the_broker_answers_and_closes(warmlog_broker: Broker) -> None:
    with connection(warmlog_broker) as stream:
        stream.sendall(hex_block("request hello") + b"\xff\xff\xff\xff")
        receive_frame(stream)
        _, refused = decode_response(receive_frame(stream)[LENGTH_SIZE:], RESPONSES["fetch"])
        assert "-1 bytes" in str(refused)
        assert stream.recv(1) == b""


def test_a_new_broker_answers_the_example_of_a_group_exactly_so() -> None:
    told_of = b"example-0c3f6b1e-6a0b-4f43-9f5c-2b2f4d0f6a11"  # the id in the document; the broker's differs
    hello = encode_request(1, HelloRequest(versions=(1, 2), client="example"))
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker, connection(broker) as stream:
        stream.sendall(hello + hex_block("request create_topics") + hex_block("request join_consumer_group"))
        _, greeted = decode_response(receive_frame(stream)[LENGTH_SIZE:], HelloResponse)
        assert isinstance(greeted, HelloResponse)
        assert greeted.version == 2
        receive_frame(stream)
        joined = receive_frame(stream)
        _, value = decode_response(joined[LENGTH_SIZE:], JoinConsumerGroupResponse)
        assert isinstance(value, JoinConsumerGroupResponse)
        member_id = value.member_id.encode()
        assert joined.replace(member_id, told_of) == hex_block("reply join_consumer_group")
        stream.sendall(hex_block("request offset_commit").replace(told_of, member_id))
        assert receive_frame(stream) == hex_block("reply offset_commit")
