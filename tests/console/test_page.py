"""The console in headless Chromium: what it draws is what the command line prints, for every eye, hand and window.

`interop/console/check.mjs` drives the browser; each of its checks fails on an error in the page and on a request that
leaves the origin.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from interop.warmlog_nodes import WarmlogNode, WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from tests.broker.log.io.eviction import evict_files, needs_eviction
from tests.requires import lacks
from warmlog import Client
from warmlog.ui.vendor import VendorError, vendor

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROJECT = Path(__file__).parents[2] / "interop" / "console"
LARGE = 5 << 20
VIEWS = [
    ("/ui/topics", "#topics tbody svg", "topics"),
    ("/ui/topics/three", "table tbody tr", ""),
    ("/ui/topics/warmlog-tour/0", "#files svg", "partition"),
    ("/ui/topics/warmlog-tour/0/explain?offset=30000", "#lookups .pages", "explain"),
    ("/ui/topics/small/0/records", "#records tbody tr", "records"),
    ("/ui/topics/small/0/records?text=nothing", "#cost", ""),
    ("/ui/topics/small/0/records/7", "#value", ""),
    ("/ui/topics/missing/0", "[role=alert]", ""),
    ("/ui/groups", "#groups tbody tr", ""),
    ("/ui/groups/readers", "#positions tbody tr", "groups"),
    ("/ui/health", "#no-alerts, #alerts", "health"),
    ("/ui/explain", "form", ""),
    ("/ui/tour", "ol.steps", ""),
]


@pytest.fixture(scope="session")
def browser() -> None:
    """The page's libraries, Node, the driver and Chromium."""
    missing = [tool for tool in ("node", "npm", "chromium") if shutil.which(tool) is None]
    if missing:
        lacks(f"{', '.join(missing)} not found (Debian: apt-get install nodejs npm chromium)")
    try:
        vendor()
    except VendorError as error:
        lacks(error)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--silent"], cwd=PROJECT, check=True)


@pytest.fixture
def node(browser: None, tmp_path: Path) -> Iterator[WarmlogNode]:
    made = WarmlogNode(1, tmp_path, {})
    made.start()
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def client(node: WarmlogNode) -> Iterator[Client]:
    with Client(node.addresses["native"]) as client:
        yield client


def command(check: str, node: WarmlogNode, given: dict[str, Any]) -> list[str]:
    return ["node", str(PROJECT / "check.mjs"), check, f"http://{node.addresses['http']}", json.dumps(given)]


def see(check: str, node: WarmlogNode, /, **given: Any) -> Any:
    run = subprocess.run(command(check, node, given), capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def printed(*arguments: object) -> list[Any]:
    """What a command prints with --json."""
    run = subprocess.run(
        [sys.executable, "-m", "warmlog", *map(str, arguments), "--json"], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


def make_tour(node: WarmlogNode) -> None:
    environment = {**os.environ, "WARMLOG_NATIVE": node.addresses["native"]}
    command = [sys.executable, "-m", "warmlog", "tour", "--data-dir", str(node.data)]
    subprocess.run(command, env=environment, check=True, capture_output=True)


def test_evicted_pages_and_lookups_are_drawn_as_the_command_line_prints_them(node: WarmlogNode, client: Client) -> None:
    needs_eviction(node.data)
    client.create_topic("words", configs={"index.interval.bytes": "1", "segment.bytes": "600000"})
    client.produce_many("words", (b"%d " % number * 40 for number in range(10_000)))
    make_tour(node)
    for topic, offset in (("words", 5000), ("warmlog-tour", 30_000), ("warmlog-tour", 59_999)):
        directory = node.data / f"{topic}-0"
        if topic == "words":
            evict_files(directory, "0*0.*")
            with (directory / f"{0:020}.log").open("rb", buffering=0) as log:
                os.posix_fadvise(log.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                log.read(100_000)
        files = {
            Path(each["file"]).name: each for each in printed("log", "residency", directory) if each["type"] == "file"
        }
        drawn = see("files", node, path=f"/ui/topics/{topic}/0")
        assert {each["name"]: each["resident"] for each in drawn} == {
            name: each["resident_pages"] for name, each in files.items()
        }
        for each in drawn:
            cells = files[each["name"]]
            whole = [
                min(cells["cell_pages"], cells["pages"] - place * cells["cell_pages"])
                for place, resident in enumerate(cells["resident_cells"])
                if resident == 0
            ]
            assert each["cold"] == sum(whole)
        arguments = ("log", "explain", directory, "--offset", offset, "--search", "plain", "--index-interval-bytes", 1)
        (explained,) = printed(*arguments)
        lookups = see("explain", node, path=f"/ui/topics/{topic}/0/explain?offset={offset}")
        assert lookups == [
            {"index": each["index"], "search": each["search"], "pages": each["pages"], "missing": each["missing"]}
            for each in explained["lookups"]
        ]
        assert any(each["missing"] for each in lookups) or topic == "words"


def test_ten_thousand_topics_are_paged_by_the_broker(node: WarmlogNode) -> None:
    admin = AdminClient({"bootstrap.servers": node.addresses["kafka"]})
    for start in range(0, 10_000, 1000):  # in one request each
        made = admin.create_topics([NewTopic(f"topic-{number:05}", 1, 1) for number in range(start, start + 1000)])
        for created in made.values():
            created.result(60)
    seen = see("topics", node)
    print(f"10,000 topics: {seen['milliseconds']:.0f} ms to the first rows")
    assert (seen["rows"], seen["second"], seen["filtered"]) == (100, "topic-00100", "topic-09999")


def test_a_value_of_5_mb_is_shown_in_pieces(node: WarmlogNode, client: Client) -> None:
    client.create_topic("large", configs={"max.message.bytes": "10000000"})
    item = '{"name": "value", "list": [1, 2, 3]}, '
    value = '{"items": [' + item * (LARGE // len(item)) + "{}]}"
    client.produce("large", value=value.encode())
    seen = see("large", node, list="/ui/topics/large/0/records")
    print(f"a value of {len(value):,} bytes: the page was busy for at most {seen['longest']:.0f} ms")
    assert seen["listed"] < 4000
    assert seen["first"] == 64 << 10
    assert seen["second"] == value[64 << 10 :][:64]


def test_bytes_that_are_no_text_are_shown_in_hex(node: WarmlogNode, client: Client) -> None:
    for value in (b"nul\0", b"\xff\xfe", "größe".encode()):
        client.produce("bytes", value=value, key=b"\0")
    found = see("records", node, path="/ui/topics/bytes/0/records?order=oldest")
    assert [(offset, value.strip(), is_hex) for offset, _, value, is_hex in found] == [
        (0, "6e 75 6c 00 hex", True),
        (1, "ff fe hex", True),
        (2, "größe", False),
    ]
    assert {key.strip() for _, key, _, _ in found} == {"00 hex"}


def test_new_records_appear_where_the_page_follows(node: WarmlogNode, client: Client) -> None:
    client.produce("live", value=b"first")
    given = {"path": "/ui/topics/live/0/records", "value": "while it was open"}
    with subprocess.Popen(
        command("follow", node, given), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as page:
        assert page.stderr is not None
        assert page.stderr.readline() == "following\n"
        client.produce("live", value=b"while it was open")
        out, errors = page.communicate(timeout=60)
    assert page.returncode == 0, errors
    assert json.loads(out) == "1"


def fill(node: WarmlogNode, client: Client) -> None:
    """Topics of all kinds, and a group."""
    client.create_topic("small", configs={"index.interval.bytes": "1"})
    client.produce_many("small", (b"%d" % number for number in range(60_000)))
    client.create_topic("three", partitions=3)
    client.produce("readings", value=b'{"degrees": 21.5}', key=b"sensor 1")
    client.commit_offsets("readers", {("small", 0): 1000, ("three", 1): 0})
    needs_eviction(node.data)
    evict_files(node.data / "small-0")


def test_every_view_is_accessible_at_every_width_light_and_dark(
    node: WarmlogNode, client: Client, tmp_path: Path
) -> None:
    fill(node, client)
    make_tour(node)
    pictures = os.environ.get("CONSOLE_PICTURES", str(tmp_path))
    assert see("views", node, views=VIEWS, pictures=pictures) == []
    assert len(list(Path(pictures).glob("console-*.png"))) >= 6


def test_the_keyboard_alone_leads_everywhere(node: WarmlogNode, client: Client) -> None:
    client.produce("small", value=b"a")
    seen = see("keyboard", node, topic="small")
    assert seen == {"skipped": "main", "title": "small-0 · warmlog", "at": "/ui/topics/small/0"}


def test_the_tour_watches_a_lookup_fault(node: WarmlogNode, tmp_path: Path) -> None:
    needs_eviction(node.data)
    make_tour(node)
    seen = see("tour", node, pictures=os.environ.get("CONSOLE_PICTURES", str(tmp_path)))
    assert seen["missing"] > 1
    assert "0 major faults" in seen["counted"]
    assert "0 lookups" not in seen["counted"]
    assert seen["left"] == 0


def test_a_topic_is_deleted_by_who_may_after_its_name_was_typed(browser: None, tmp_path: Path) -> None:
    settings = {"warmlog.http.authentication": "basic", "warmlog.http.authentication.without.tls": "true"}
    made = WarmlogNode(1, tmp_path, settings)
    made.start()
    try:
        with Client(made.addresses["native"]) as client:
            client.create_topic("doomed")
            environment = {**os.environ, "WARMLOG_KAFKA": made.addresses["kafka"]}
            (tmp_path / "password").write_text("open sesame")
            (tmp_path / "password").chmod(0o600)
            arguments = ["user", "create", "admin", "--new-password-file", str(tmp_path / "password")]
            subprocess.run([sys.executable, "-m", "warmlog", *arguments], env=environment, check=True)
            login = {"username": "admin", "password": "open sesame"}
            seen = see("remove", made, topic="doomed", login=login)
            assert "All records of doomed are lost" in seen["warning"]
            assert not seen["wasEnabled"]
            assert [topic.name for topic in client.list_topics()] == []
    finally:
        made.kill()


def test_three_brokers_of_which_one_is_killed(browser: None, tmp_path: Path) -> None:
    settings = {"default.replication.factor": 3, "min.insync.replicas": 1}
    with etcd(tmp_path / "etcd") as (store,), WarmlogNodes(tmp_path, store.url, settings=settings) as nodes:
        with Client(nodes[1].addresses["native"]) as client:
            client.create_topic("shared", partitions=1)
            client.produce("shared", value=b"a")
        path = "/ui/topics/shared/0"
        before = see("cluster", nodes[1], path=path)
        assert "of 3" in before["strip"]
        assert [is_in_sync for _, _, is_in_sync in before["replicas"]] == ["yes"] * 3
        nodes[3].kill()
        after = see("cluster", nodes[1], path=path, alert="WarmlogUnderReplicated")
        assert len(after["alerts"]) >= 1
        assert {broker: is_in_sync for broker, _, is_in_sync in after["replicas"]}["3"] == "no"
