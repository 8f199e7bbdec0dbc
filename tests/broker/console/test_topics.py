"""The list of topics, one topic, one partition: what the logs say, and what is in the page cache."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.clients import batch
from tests.broker.console.web import allow, console, console_with_users, produce
from tests.broker.log.io.eviction import evict_files, needs_eviction
from warmlog.broker.console.topic_list import CELLS, _joined
from warmlog.broker.log.io.survey import PageSurvey
from warmlog.cli.log.explain import Target, explain_directory
from warmlog.cli.log.residency import MAX_CELLS, file_json, survey_files

TOPIC, CLUSTER = 2, 4
READ, DESCRIBE = 3, 8


async def test_topics_are_filtered_sorted_and_paged(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        for number in range(105):
            await client.create(f"t{number:03}", partitions=2 if number == 7 else 1)
        await produce(client, "t050", b"1", b"2", b"3")
        await produce(client, "t060", b"x" * 1000)
        listed = await site.get("topics")
        assert [each["name"] for each in listed["topics"]] == [f"t{number:03}" for number in range(100)]
        assert (listed["total"], listed["page_size"]) == (105, 100)
        assert (await site.get("topics?page=1"))["topics"][0]["name"] == "t100"
        assert (await site.get("topics?page=2"))["topics"] == []
        assert (await site.get("topics?filter=t05"))["total"] == 10

        async def first(sort: str) -> Any:
            return (await site.get(f"topics?sort={sort}&order=descending"))["topics"][0]

        assert (await first("records"))["name"] == "t050"
        assert (await first("size"))["name"] == "t060"
        assert (await first("partitions"))["name"] == "t007"
        assert (await first("name"))["name"] == "t104"
        assert (await first("last_write"))["name"] in {"t050", "t060"}


async def test_a_topic_shows_the_first_offset_that_is_not_synced(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("lazy")
        await client.create("eager", **{"flush.messages": "1"})
        for name in ("lazy", "eager"):
            await produce(client, name, b"a", b"b")
        found = {each["name"]: each for each in (await site.get("topics"))["topics"]}
        assert found["lazy"]["unsynced"] == [{"partition": 0, "offset": 0}]
        assert found["eager"]["unsynced"] == []
        assert found["eager"]["records"] == 2
        assert (await site.get("topics/lazy/partitions/0"))["flushed_offset"] == 0
        assert (await site.get("topics/eager/partitions/0"))["flushed_offset"] == 2


async def test_internal_topics_are_listed_on_demand(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("__consumer_offsets")
        assert (await site.get("topics"))["total"] == 0
        assert (await site.get("topics?internal=true"))["topics"][0]["internal"]


async def test_only_what_the_caller_may_describe_is_shown(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "alice") as site:
        client, alice = await site.broker.connect(), site.by("alice")
        for name in ("mine", "hidden"):
            await client.create(name)
            await produce(client, name, b"secret")
        assert (await alice.get("topics"))["topics"] == []
        await allow(site, "alice", TOPIC, "mine", DESCRIBE)
        assert [each["name"] for each in (await alice.get("topics"))["topics"]] == ["mine"]
        assert [each["topic"] for each in (await alice.get("residency?topic=mine&topic=hidden"))["topics"]] == ["mine"]
        detail = await alice.get("topics/mine")
        assert (detail["total"], detail["configs"]) == (1, [])
        assert (await alice.get("topics/mine/partitions/0"))["log_end_offset"] == 1
        for path in ("topics/hidden", "topics/missing", "topics/hidden/partitions/0", "topics/hidden/partitions/9"):
            assert await alice.error(path) == (403, "TOPIC_AUTHORIZATION_FAILED"), path  # as if there were none
        for path in ("records", "records/0", "records/0/value", "records/0/raw", "explain?offset=0"):
            for name in ("mine", "hidden", "missing"):
                assert await alice.error(f"topics/{name}/partitions/0/{path}") == (403, "TOPIC_AUTHORIZATION_FAILED")
        assert (await alice.get("status"))["totals"] is None
        health = await alice.get("health")
        assert (health["receipts"], health["moves"], health["mirror"], health["stalls"]) == (None, None, None, [])
        await allow(site, "alice", TOPIC, "mine", READ)
        assert len((await alice.get("topics/mine/partitions/0/records"))["records"]) == 1
        await allow(site, "alice", CLUSTER, "kafka-cluster", DESCRIBE)
        assert (await alice.get("status"))["totals"]["topics"] == 2


async def test_the_map_of_a_partition_is_that_of_log_residency(tmp_path: Path) -> None:
    needs_eviction(tmp_path)
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("words", **{"segment.bytes": "100000", "index.interval.bytes": "1"})
        for _ in range(60):
            await client.produce("words", batch(b"w" * 9000))
        directory = tmp_path / "data" / "words-0"
        evict_files(directory, f"{0:020}.*")
        with (directory / f"{0:020}.log").open("rb", buffering=0) as log:
            log.read(20_000)
        found = (await site.get("topics/words/partitions/0"))["files"]
        files = [file_json(each) for each in survey_files(directory, MAX_CELLS)]
        names = ("base_offset", "kind", "size", "pages", "resident_pages", "cell_pages", "resident_cells")
        assert [[each[name] for name in names] for each in found] == [
            [_plain(each[name]) for name in names] for each in files
        ]
        assert {each["resident_pages"] == each["pages"] for each in found} == {True, False}
        (topic,) = (await site.get("residency?topic=words"))["topics"]
        logs = [each for each in files if each["kind"] == "log"]
        assert topic["pages"] == sum(each["pages"] for each in logs)
        assert topic["resident_pages"] == sum(each["resident_pages"] for each in logs)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=300), min_size=1, max_size=8))
def test_the_cells_of_several_files_add_up(files: list[list[bool]]) -> None:
    page = 4096
    surveys = []
    for pages in files:
        cell = -(-len(pages) // CELLS)
        cells = tuple(sum(pages[at : at + cell]) for at in range(0, len(pages), cell))
        surveys.append(PageSurvey(len(pages) * page, cell, cells))
    total = sum(len(pages) for pages in files)
    cell_pages = -(-total // CELLS)
    joined = _joined(surveys, total, cell_pages)
    assert len(joined) == -(-total // cell_pages)
    assert abs(sum(joined) - sum(map(sum, files))) <= len(joined) / 2
    for place, resident in enumerate(joined):
        assert 0 <= resident <= min(cell_pages, total - place * cell_pages)


async def test_the_warm_section_begins_where_the_search_looks_first(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("indexed", **{"index.interval.bytes": "1"})
        for number in range(60):
            await client.produce("indexed", b"".join([batch(b"v%d" % number)] * 30))
        index = next(
            each for each in (await site.get("topics/indexed/partitions/0"))["files"] if each["kind"] == "index"
        )
        entries = (await site.get("topics/indexed/partitions/0"))["segments"][0]["offset_index_entries"]
        assert index["warm_from"] == max(0, (entries - 1 - 1024) * 8)
        assert index["size"] >= entries * 8


@pytest.mark.parametrize("offset", [0, 100, 599])
async def test_explanations_are_those_of_log_explain(tmp_path: Path, offset: int) -> None:
    needs_eviction(tmp_path)
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("words", **{"index.interval.bytes": "1"})
        for number in range(600):
            await client.produce("words", batch(b"w%d" % number))
        evict_files(tmp_path / "data" / "words-0")
        path = f"topics/words/partitions/0/explain?offset={offset}"
        found = await site.get(path)
        assert found["gate"]
        assert (await site.get(path)) == found  # it changes nothing
        lookups = found["explanation"]["lookups"]
        assert [each["search"] for each in lookups] == ["warm", "plain"]
        target = Target(offset, None, plain=True)
        one = msgspec.to_builtins(explain_directory(tmp_path / "data" / "words-0", target, 1))
        assert lookups == [{name: _plain(value) for name, value in each.items()} for each in one["lookups"]]
        assert found["explanation"]["batch"]["place"]["missing_pages"] == one["batch"]["place"]["missing_pages"]
        warm = await site.get(f"{path}&search=warm")
        assert len(warm["explanation"]["lookups"]) == 1
        assert warm["gate_pages"] == found["gate_pages"] >= len(lookups[0]["missing"])


async def test_explain_by_time_and_its_bad_requests(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("words")
        await produce(client, "words", b"a", b"b", b"c")
        found = await site.get("topics/words/partitions/0/explain?time=1700000000001")
        assert found["explanation"]["offset"] == 1
        for query in ("", "?offset=1&time=1", "?offset=x", "?offset=-1", "?time=-1", "?offset=1&search=cold"):
            assert (await site.error(f"topics/words/partitions/0/explain{query}"))[0] == 400, query
        assert await site.error("topics/words/partitions/0/explain?offset=4") == (416, "OFFSET_OUT_OF_RANGE")
        assert (await site.error("topics/words/partitions/7/explain?offset=0"))[0] == 404
