"""What a type checker finds in programs that use the client."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json
import re

from warmlog import TEXT, Client, Format, Message, Serializer, connect

counts = Format(key=TEXT, value=Serializer(lambda count: b"%d" % count, lambda data: int(data)))
numbers: Format[str, list[int]] = Format(key=TEXT, value=Serializer(lambda n: json.dumps(n).encode(), json.loads))

async def revoked(partitions: object) -> None:
    print(partitions)

async def right() -> None:
    async with connect("127.0.0.1:9091", acks="all", compression="zstd") as client:
        stored = await client.produce("t", key=b"k", value=bytearray(b"v"), headers={"a": b"1"})
        print(stored.offset + 1)
        await client.produce_many("t", [b"v", (b"k", None), Message(b"v", timestamp=1)])
        await client.produce_many("t", (b"%d" % number for number in range(3)))
        async for record in client.consume("t", start="beginning", isolation="read_committed"):
            print(record.value)
        await client.produce("t", **counts.pack(5, key="k"), partition=1)
        await client.produce_many("t", [numbers.message([5])])
        async with client.consume(re.compile("t.*"), group="g", on_revoked=revoked, on_assigned=print) as stream:
            async for record in stream:
                print(counts.read(record).key, sum(numbers.read(record).value or ()))
                stream.seek(5)

async def wrong() -> None:
    connect(linger=5)  # wrong
    async with connect() as client:
        await client.produce("t", value="text")  # wrong
        await client.produce("t", value=b"v", key=5)  # wrong
        await client.produce_many("t", ["text"])  # wrong
        await client.produce_many("t", [(b"k", b"v", b"h")])  # wrong
        client.consume("t", start="begining")  # wrong
        client.consume("t", isolation="read_commited")  # wrong
        async for record in client.consume("t"):
            print(record.valeu)  # wrong
        numbers.message([5], key=b"k")  # wrong
        numbers.pack("text")  # wrong
        client.consume(re.compile("t"))  # wrong
        client.consume("t", group="g", on_assigned=5)  # wrong

def wrong_too() -> None:
    with Client(compression="zip") as client:  # wrong
        client.produce("t", value=b"v").ofset  # wrong
        client.produce_many("t", [5])  # wrong
"""


WRONG = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}


def test_mypy_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {int(line) for line in re.findall(r"program.py:(\d+): error", done.stdout)}
    assert found == WRONG, done.stdout
