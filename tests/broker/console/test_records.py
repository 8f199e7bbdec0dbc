"""Records: in any order, filtered, of any bytes, within budgets, from cold files, and without a group."""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.broker.clients import batch
from tests.broker.console.web import Site, allow, console, console_with_users, produce, produce_batch
from tests.broker.log.io.eviction import evict_files, needs_eviction
from warmlog.broker.console.records import forms, pieces, reading
from warmlog.broker.console.records.forms import ShownRecord, Wanted, bytes_form, decode_slice
from warmlog.broker.console.records.pieces import PIECE_S
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.crc import crc32c
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.records.record import Record
from warmlog.protocol.request import PartitionRecords, ProduceRequest

TOPIC, READ = 2, 3


async def pages_of(site: Site, topic: str, query: str) -> AsyncIterator[Any]:
    """Follow `next_from` to the end."""
    position = ""
    for _ in range(500):
        page = await site.get(f"topics/{topic}/partitions/0/records?{query}{position}")
        yield page
        if page["next_from"] is None:
            return
        position = f"&from={page['next_from']}"
    raise AssertionError("there is no end")


async def every_page(site: Site, topic: str, query: str) -> list[Any]:
    """Return the records of all pages."""
    return [each async for page in pages_of(site, topic, query) for each in page["records"]]


@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_a_list_ends_before_it_shows_too_much(
    tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "MAX_SHOWN_BYTES", 5000)
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("wide")
        sizes = [900] * 12 + [9000, 0, 9000] + [10] * 40
        await produce(client, "wide", *[b"w" * size for size in sizes])
        pages = [each async for each in pages_of(site, "wide", f"order={order}&limit=200")]
        shown = [each for page in pages for each in page["records"]]
        assert [each["offset"] for each in shown] == list(range(len(sizes)))[:: 1 if order == "oldest" else -1]
        for page in pages:
            assert sum(each["value"]["shown"] for each in page["records"]) <= 5000
            assert page["searched"] == len(page["records"])
        assert len(pages) == 3


async def test_searches_of_one_user_do_not_delay_those_of_another(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "alice", "bob") as site:
        client = await site.broker.connect()
        await client.create("tiny")
        await produce_batch(client, "tiny", [(1, None, b"v")] * 40_000)
        for user in ("alice", "bob"):
            await allow(site, user, TOPIC, "tiny", READ)
        ended: list[str] = []

        async def search(user: str) -> None:
            await site.by(user).get("topics/tiny/partitions/0/records?text=x")
            ended.append(user)

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(search, "alice")
            while not ended:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(search, "bob")
        assert "bob" in ended[:9], ended


async def test_the_first_headers_of_a_record_are_shown(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("headed")
        headers = [(f"name {number}", b"x") for number in range(70)]
        data = memoryview(build_batch([(0, b"k", b"v", headers)]))
        await client.ask(ProduceRequest(partitions=(PartitionRecords(topic="headed", partition=0, records=data),)))
        (record,) = (await site.get("topics/headed/partitions/0/records"))["records"]
        assert [each["key"] for each in record["headers"]] == [f"name {number}" for number in range(50)]


def test_decoding_pauses_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pauses = count(step=PIECE_S / 4), list[float]()
    monkeypatch.setattr(pieces, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(pieces, "sleep", pauses.append)
    data = build_batch([(0, None, b"v", ())] * 100)
    assert len(decode_slice(data, Wanted(0, 100, None, 200, offset_of)).records) == 100
    assert len(pauses) > 10
    assert min(pauses) >= PIECE_S


def offset_of(shown: ShownRecord) -> int:
    return shown.record.offset


def is_even(record: Record) -> bool:
    return record.offset % 2 == 0


@pytest.mark.parametrize("most", [1, 7, 20, 40])
def test_a_slice_is_decoded_for_its_first_or_its_last_records(most: int) -> None:
    data = b"".join(build_batch([(0, None, b"v", ())] * 20, base_offset=start) for start in (0, 20, 40))
    oldest = decode_slice(data, Wanted(0, 60, is_even, most, offset_of))
    assert list(oldest.records) == list(range(0, 60, 2))[:most]
    assert oldest.next_offset == min(60, 20 * ((2 * most - 2) // 20 + 1))
    newest = decode_slice(data, Wanted(0, 50, is_even, most, offset_of, newest=True))
    assert list(newest.records) == list(range(0, 50, 2))[-most:]
    assert newest.next_offset == 60


def test_nothing_of_a_batch_that_ends_wrongly_is_shown() -> None:
    good, bad = build_batch([(0, None, b"v", ())] * 3), bytearray(build_batch([(0, None, b"v", ())] * 3, base_offset=3))
    bad[-1] = 2  # one header, which is missing
    bad[17:21] = crc32c(bytes(bad[21:])).to_bytes(4, "big")
    for newest in (False, True):
        decoded = decode_slice(good + bytes(bad), Wanted(0, 6, None, 9, offset_of, newest=newest))
        assert list(decoded.records) == [0, 1, 2]
        assert len(decoded.skipped) == 1


async def test_what_a_batch_decompresses_to_counts_against_the_budget(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("zeros")
        for _ in range(8):
            await produce_batch(client, "zeros", [(1, None, bytes(12 << 20))], compression=Codec.ZSTD)
        page = await site.get("topics/zeros/partitions/0/records?order=oldest")
        assert len(page["records"]) == page["next_from"] == 6  # 64 MiB
        for order in ("oldest", "newest"):
            pages = [each async for each in pages_of(site, "zeros", f"order={order}")]
            assert 1 < len(pages) < 8
            assert sorted(each["offset"] for page in pages for each in page["records"]) == list(range(8))


@pytest.mark.parametrize("seed", range(4))
async def test_every_record_is_found_once_in_both_orders(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("mixed", **{"segment.bytes": "300000", "max.message.bytes": "500000"})
        stored = []
        for _ in range(40):
            values = [
                bytes([random.randrange(256)]) * random.choice((1, 20, 3000)) for _ in range(random.randrange(1, 12))
            ]
            if random.random() < 0.1:
                values.append(b"L" * 150_000)
            await produce(client, "mixed", *values)
            stored += values
        limit = random.choice((1, 7, 50, 200))
        oldest = await every_page(site, "mixed", f"order=oldest&limit={limit}")
        newest = await every_page(site, "mixed", f"order=newest&limit={limit}")
        assert [each["offset"] for each in oldest] == list(range(len(stored)))
        assert newest == oldest[::-1]
        assert [each["value"]["size"] for each in oldest] == list(map(len, stored))


async def test_pages_end_only_at_the_end_of_the_log(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("numbers")
        for start in range(0, 1000, 100):
            await produce(client, "numbers", *[b"%d" % number for number in range(start, start + 100)])
        page = await site.get("topics/numbers/partitions/0/records?limit=200")
        assert (page["records"][0]["offset"], page["records"][-1]["offset"]) == (999, 800)
        assert (page["next_from"], page["searched"], page["to_search"]) == (800, 200, 1000)
        first = await site.get("topics/numbers/partitions/0/records?from=2")
        assert [each["offset"] for each in first["records"]] == [1, 0]
        assert first["next_from"] is None
        since = await site.get("topics/numbers/partitions/0/records?order=oldest&time=1700000000099&limit=1")
        assert since["records"][0]["offset"] == 99
        assert (await site.get("topics/numbers/partitions/0/records?order=oldest&from=1000"))["records"] == []
        assert (await site.error("topics/numbers/partitions/0/records?limit=201"))[0] == 400


async def test_a_filter_searches_within_a_budget_and_says_how_far(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("big")
        for number in range(60):
            await produce(client, "big", b"%03d " % number + b"x" * 60_000, key=b"key %d" % (number % 3))
        page = await site.get("topics/big/partitions/0/records?text=002%20x&budget=1000000")
        assert page["records"] == []
        assert 0 < page["searched"] < 60
        assert page["cost"]["bytes"] < 6_000_000
        found = await every_page(site, "big", "text=002%20x&budget=1000000")
        assert [each["offset"] for each in found] == [2]
        keyed = await every_page(site, "big", "order=oldest&key=key%201&budget=500000")
        assert [each["offset"] for each in keyed] == list(range(1, 60, 3))
        assert [each["offset"] for each in await every_page(site, "big", "key=key%201&text=004&limit=5")] == [4]


async def test_bytes_that_are_no_text_are_shown_in_hex(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("bytes")
        await produce(
            client, "bytes", b"a\0b", b"\xff\xfe", "größe\n€".encode(), b"", None, "\u202egnp.exe".encode(), key=b"\x80"
        )
        found = [each["value"] for each in await every_page(site, "bytes", "order=oldest")]
        assert [each and (each["text"], each["hex"]) for each in found] == [
            (None, "610062"), (None, "fffe"), ("größe\n€", None), ("", None), None, (None, "e280ae676e702e657865"),
        ]  # fmt: skip
        assert (await site.get("topics/bytes/partitions/0/records/0"))["key"]["hex"] == "80"
        raw = await site.send("/api/v1/topics/bytes/partitions/0/records/0/raw")
        assert raw.body == b"a\0b"
        assert raw.headers["content-type"] == "application/octet-stream"
        assert raw.headers["content-disposition"] == 'attachment; filename="bytes-0-0.bin"'
        assert await site.error("topics/bytes/partitions/0/records/4/raw") == (404, "NOT_FOUND")


@given(
    st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "ignore")), st.integers(1, 45)
)
def test_a_preview_never_invents_bytes(data: bytes, preview: int) -> None:
    form = bytes_form(data, preview)
    assert form is not None
    shown = bytes.fromhex(form.hex) if form.text is None and form.hex is not None else (form.text or "").encode()
    assert data.startswith(shown)
    assert (form.size, form.shown) == (len(data), len(shown))
    assert len(shown) <= preview
    if form.hex is None:
        assert len(shown) > min(len(data), preview) - 4
        assert "\0" not in (form.text or "")


async def test_a_large_value_comes_in_pieces_on_demand(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("large", **{"max.message.bytes": "20000000"})
        value = b'{"list": [' + b'"0123456789", ' * 400_000 + b"0]}"
        await produce(client, "large", value)
        listed = await site.send("/api/v1/topics/large/partitions/0/records")
        assert len(listed.body) < 3000
        assert listed.json["records"][0]["value"]["shown"] == 1024
        pieces, start = b"", 0
        while start < len(value):
            piece = await site.get(f"topics/large/partitions/0/records/0/value?start={start}&bytes=262144")
            pieces, start = pieces + piece["text"].encode(), start + piece["shown"]
        assert pieces == value
        assert (await site.error("topics/large/partitions/0/records/0/value?start=99999999"))[0] == 404
        assert (await site.error("topics/large/partitions/0/records/0/value?bytes=99999999"))[0] == 400


async def test_a_batch_beyond_the_budget_is_named_and_the_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_BATCH_BYTES", 100_000)
    monkeypatch.setattr(forms, "MAX_DECODED_BYTES", 100_000)
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("bombs")
        await produce(client, "bombs", b"before")
        await produce(client, "bombs", b"stored" * 30_000)
        await produce_batch(client, "bombs", [(1, None, bytes(300_000))], compression=Codec.GZIP)
        await produce(client, "bombs", b"after")
        for order in ("oldest", "newest"):
            found, skipped, position = [], [], ""
            while True:
                page = await site.get(f"topics/bombs/partitions/0/records?order={order}{position}")
                found += [each["offset"] for each in page["records"]]
                skipped += page["skipped"]
                if page["next_from"] is None:
                    break
                position = f"&from={page['next_from']}"
            assert sorted(found) == [0, 3], order
            assert {int(each.split()[1]) for each in skipped} == {1, 2}, skipped
        status, error = await site.error("topics/bombs/partitions/0/records/1")
        assert (status, error) == (404, "NO_RECORD")


async def test_a_damaged_batch_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("damaged")
        for value in (b"one", b"two", b"three"):
            await produce(client, "damaged", value)
        log = next((tmp_path / "data" / "damaged-0").glob("*.log"))
        data = bytearray(log.read_bytes())
        at = data.index(b"two")
        with log.open("r+b") as file:
            file.seek(at)
            file.write(b"TWO")
        page = await site.get("topics/damaged/partitions/0/records")
        assert [each["offset"] for each in page["records"]] == [2, 0]
        assert page["skipped"][0].startswith("batch 1 to 1: ")


async def test_markers_of_transactions_have_names_and_deleted_records_are_not_found(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("words")
        await produce(client, "words", b"a")
        assert await site.error("topics/words/partitions/0/records/1") == (416, "OFFSET_OUT_OF_RANGE")
        assert (await site.error("topics/words/partitions/0/records/x"))[0] == 400


async def test_a_cold_read_says_what_it_cost_and_leaves_the_page_cache_as_it_was(tmp_path: Path) -> None:
    needs_eviction(tmp_path)
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("cold", **{"segment.bytes": "400000", "index.interval.bytes": "4096"})
        for _ in range(100):
            await client.produce("cold", batch(b"c" * 9000))
        directory = tmp_path / "data" / "cold-0"
        evict_files(directory, f"{0:020}.*")

        async def resident() -> int:
            files = (await site.get("topics/cold/partitions/0"))["files"]
            return int(files[0]["resident_pages"])

        assert await resident() == 0
        before = (await site.get("status"))["totals"]
        page = await site.get("topics/cold/partitions/0/records?order=oldest&from=10&limit=3")
        assert [each["offset"] for each in page["records"]] == [10, 11, 12]
        assert 0 < page["cost"]["cold_pages"] <= page["cost"]["pages"]  # a lookup has read the headers
        assert page["cost"]["cold_lookups"] > 0
        after = (await site.get("status"))["totals"]
        assert after["cold_reads"] > before["cold_reads"]
        assert after["loop_faults"]["major log_scan"] == before["loop_faults"]["major log_scan"]
        warm = await site.get("topics/cold/partitions/0/records?limit=3")
        assert warm["cost"]["cold_pages"] == 0
        assert (await site.get("groups"))["total"] == 0


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="ab", max_size=3), key=st.text(alphabet="kx", max_size=2))
def test_the_filter_is_that_of_bytes(text: str, key: str) -> None:
    keeps = reading._filter(key, text)
    for record in (Record(0, 0, b"kkx", b"abba"), Record(1, 0, None, b"aa"), Record(2, 0, b"k", None)):
        expected = (not key or key.encode() in (record.key or b"\0")) and (
            not text or text.encode() in (record.value or b"\0")
        )
        assert (keeps is None) == (not key and not text)
        assert keeps is None or keeps(record) == expected
