"""Records of groups in `__consumer_offsets`, compared with bytes written by Kafka's classes."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.group_records import decode_key

FOLDER = Path(__file__).parents[3] / "fixtures" / "kafka" / "4.4.0"
GROUP = "grüppe"
MEMBER = "q2FpnsfBSlO7UZ4tKcAZyw"


@cache
def golden(file: str) -> Sequence[Mapping[str, Any]]:
    """Return the lines of a file."""
    return [json.loads(line) for line in (FOLDER / file).read_text(encoding="ascii").splitlines()]


def written(file: str, name: str) -> list[bytes]:
    """Return the bytes that Kafka wrote for its class of this name."""
    found = [bytes.fromhex(line["bytes"]) for line in golden(file) if line["name"] == name]
    assert found
    return found


class GoldenRecords:
    """The records of a kind of group: the file with Kafka's bytes, the keys in it by name, and the code to compare."""

    def __init__(
        self,
        file: str,
        keys: Mapping[str, Any],
        *,
        encode_key: Callable[[Any], bytes],
        encode: Callable[[Any, Any], bytes],
        decode: Callable[[Any, bytes], Any],
    ) -> None:
        self._file = file
        self._keys = keys
        self._encode_key = encode_key
        self._encode = encode
        self._decode = decode

    def written(self, name: str) -> list[bytes]:
        """Return the bytes that Kafka wrote."""
        return written(self._file, name)

    def check_key(self, name: str) -> None:
        """Compare a key with Kafka's."""
        (data,) = self.written(name)
        assert decode_key(data) == self._keys[name]
        assert type(decode_key(data)) is type(self._keys[name])
        assert self._encode_key(self._keys[name]) == data

    def check_values(self, name: str, values: Sequence[Any]) -> None:
        """Compare values with Kafka's, and refuse each of these that ends early."""
        key = self._keys[name.removesuffix("Value") + "Key"]
        assert [self._decode(key, data) for data in self.written(name)] == values
        assert [self._encode(key, value) for value in values] == self.written(name)
        for data in self.written(name):
            for end in range(len(data)):
                with pytest.raises(MalformedError):
                    self._decode(key, data[:end])

    def check_record(self, key: Any, value: Any, data: st.DataObject) -> None:
        """Read what was written, and read or refuse mutations of it by one error."""
        assert decode_key(self._encode_key(key)) == key
        assert self._decode(key, self._encode(key, value)) == value
        for encoded in (self._encode_key(key), self._encode(key, value)):
            position = data.draw(st.integers(0, len(encoded) - 1))
            mutated = bytearray(encoded)
            mutated[position] = data.draw(st.integers(0, 255))
            for changed in (encoded[:position], bytes(mutated), encoded[:position] + encoded[position + 1 :]):
                with contextlib.suppress(MalformedError):
                    decode_key(changed)
                with contextlib.suppress(MalformedError):
                    self._decode(key, changed)
