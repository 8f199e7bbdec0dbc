"""What Kafka answered to unusual and wrong batches, and what it stored of them: the same here, but where it is said."""

from pathlib import Path
from typing import Any

from tests.golden.verdicts import ONLY_PRODUCE_REFUSES, expected_error, tells_records, verdicts
from warmlog.broker.log.appends.planned import extents, stamped
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.topics import log_config
from warmlog.protocol.errors import ProtocolError, RecordsRefusedError
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.reader import records_in
from warmlog.protocol.records.reencode import reencode_batches
from warmlog.protocol.records.validation import NeedsReencodingError, check_batches

FIRST_WITH_ZSTD = 7


def judged(line: dict[str, Any]) -> tuple[int, tuple[tuple[int, str], ...], bytes]:
    """The error, the record errors and the bytes that would be stored."""
    rules = log_config({name: str(value) for name, value in line["configs"].items()}, Settings()).batch_rules
    now_ms = line["log_append_time"] if line["log_append_time"] >= 0 else line["at_ms"]
    view = memoryview(bytes.fromhex(line["sent"]))
    try:
        try:
            checked = check_batches(view, rules, now_ms)
        except NeedsReencodingError:
            view = memoryview(reencode_batches(view, rules, now_ms))
            checked = check_batches(view, rules, now_ms, reencoded=True)
        base_offset = max(line["base_offset"], 0)
        extents(checked, base_offset)
    except RecordsRefusedError as error:
        return error.code, error.record_errors, b""
    except ProtocolError as error:
        return error.code, (), b""
    return 0, (), b"".join(stamped(view, checked, base_offset, 0))


def described(line: dict[str, Any]) -> str:
    return f"{line['name']} {line['configs']} {line['version']}"


def records_of(batch: bytes) -> list[Any]:
    ((_, header),) = headers(batch)
    return [header.codec, header.timestamp_type, header.max_timestamp, header.record_count, *records_in(batch)]


def test_a_batch_gets_kafkas_answer(kafka_fixtures: Path) -> None:
    for line in verdicts(kafka_fixtures):
        if line["version"] < FIRST_WITH_ZSTD or line["name"] in ONLY_PRODUCE_REFUSES:
            continue  # that is the request, not the batch
        error, record_errors, _ = judged(line)
        assert error == expected_error(line), described(line)
        if tells_records(line):
            assert [index for index, _ in record_errors] == [index for index, _ in line["record_errors"]], line


def test_a_batch_is_stored_as_kafka_stores_it(kafka_fixtures: Path) -> None:
    """Byte for byte, but for what compressors make of it: then every record and what the header says of them."""
    compared = 0
    for line in verdicts(kafka_fixtures):
        error, _, stored = judged(line)
        if error or not line["stored"]:
            continue
        kafkas = bytes.fromhex(line["stored"])
        compressed_anew = line["configs"].get("compression.type") == "gzip"
        if compressed_anew:
            assert records_of(stored) == records_of(kafkas), described(line)
        else:
            assert stored == kafkas, described(line)
        assert list(records_in(stored))  # its CRC holds
        compared += 1
    assert compared > 30
