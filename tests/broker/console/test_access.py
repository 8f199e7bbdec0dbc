"""Who is answered, and how the page is sent."""

import gzip
from pathlib import Path

import pytest
import trio

from tests.broker.console.web import Site, console, console_with_users
from warmlog.broker.console.console import MAX_BODY_BYTES, _is_local_name, _is_loopback
from warmlog.ui.vendor import is_current

needs_libraries = pytest.mark.skipif(not is_current(), reason="the console's libraries are not here: `make ui`")


@needs_libraries
async def test_every_view_has_a_path_that_loads_the_page(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        for path in ("/ui", "/ui/topics", "/ui/topics/a%2Fb/0/explain?offset=1", "/ui/groups/x"):
            reply = await site.send(path)
            assert reply.status == 200
            assert b'<div id="app">' in reply.body
        assert (await site.send("/ui", method="HEAD")).body == b""
        assert (await site.send("/ui/static/nothing.js")).status == 404
        assert (await site.send("/ui/static/../../../../etc/passwd")).status == 404
        assert (await site.send("/ui", method="POST")).status == 405
        assert (await site.send("/uisomething")).status == 404


@needs_libraries
async def test_files_are_compressed_kept_and_restricted_to_their_origin(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        plain = await site.send("/ui/static/main.js")
        packed = await site.send("/ui/static/main.js", headers={"Accept-Encoding": "br, gzip;q=0.5"})
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        assert len(packed.body) < len(plain.body)
        kept = await site.send("/ui/static/main.js", headers={"If-None-Match": f'"old", {plain.headers["etag"]}'})
        assert (kept.status, kept.body) == (304, b"")
        for reply in (plain, packed, kept, await site.send("/api/v1/status"), await site.send("/api/v1/nothing")):
            assert reply.headers["content-security-policy"].startswith("default-src 'self'")
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert not [name for name in reply.headers if name.startswith("access-control")]


@needs_libraries
async def test_the_page_has_no_address_of_another_origin(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        page = (await site.send("/ui")).body.decode()
        assert "//" not in page
        assert "style=" not in page
        assert "<script>" not in page


async def test_without_a_login_only_this_machine_is_answered_by_its_own_names(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:9", "[::1]:9"):
            assert (await site.send("/api/v1/status", headers={"Host": host})).status == 200, host
        for host in (
            "rebound.example",
            "rebound.example:80",
            "127.0.0.1.rebound.example",
            "",
            "[::2]",
            "10.0.0.1",
            "localhost:9@rebound.example",
            "localhost:x",
            "[::1",
            "[127.0.0.1]x",
        ):
            reply = await site.send("/api/v1/status", headers={"Host": host})
            assert (reply.status, reply.json["error"]) == (403, "UNKNOWN_HOST"), host


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("::ffff:10.0.0.1", False), ("10.0.0.1", False),
     ("fe80::1%eth0", False), ("nonsense", False)],
)  # fmt: skip
def test_a_peer_is_on_this_machine_by_its_address_alone(peer: str, is_local: bool) -> None:
    assert _is_loopback(peer) is is_local


def test_a_name_without_brackets_is_no_ipv6_address() -> None:
    assert not _is_local_name("::1")


async def test_without_a_login_nothing_is_changed(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        reply = await site.post("topics", {"name": "new"})
        assert (reply.status, reply.json["error"]) == (403, "READ_ONLY")
        assert (await site.get("topics"))["total"] == 0
        assert (await site.send("/api/v1/topics", method="DELETE")).status == 405


async def test_with_authentication_everything_needs_a_login_and_any_host_is_answered(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "admin") as site:
        for path in ("/ui", "/api/v1/status", "/api/v1/topics"):
            reply = await site.send(path)
            assert reply.status == 401
            assert reply.headers["www-authenticate"].startswith("Basic")
            assert reply.json == {"error": "UNAUTHORIZED", "message": "log in"}
        reply = await site.by("admin").send("/api/v1/status", headers={"Host": "broker.example"})
        assert reply.json["user"] == "User:admin"


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"Origin": "http://other.example"}, 403, "CROSS_ORIGIN"),
        ({"Origin": "null"}, 403, "CROSS_ORIGIN"),
        ({"Origin": "ftp://a:1", "Host": "a:1"}, 403, "CROSS_ORIGIN"),
        ({"Content-Type": "text/plain"}, 415, "INVALID_REQUEST"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "INVALID_REQUEST"),
    ],
)
async def test_other_sites_cannot_change_anything(
    tmp_path: Path, headers: dict[str, str], status: int, error: str
) -> None:
    async with console_with_users(tmp_path, "admin") as site:
        admin = site.by("admin")
        given = {"Content-Type": "application/json", **headers}
        reply = await admin.send("/api/v1/topics", method="POST", headers=given, body=b'{"name":"new"}')
        assert (reply.status, reply.json["error"]) == (status, error)
        assert (await admin.get("topics"))["total"] == 0
        origin = {"Content-Type": "application/json", "Origin": "https://a:1", "Host": "a:1"}
        assert (await admin.send("/api/v1/topics", method="POST", headers=origin, body=b'{"name":"new"}')).status == 200


async def test_a_body_has_a_limit_and_is_checked(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "admin") as site:
        admin = site.by("admin")
        assert (await admin.post("topics", {"name": "n" * MAX_BODY_BYTES})).status == 413
        for body in ({}, {"name": 1}, {"name": "a", "unknown": 1}, [], "x"):
            reply = await admin.post("topics", body)
            assert (reply.status, reply.json["error"]) == (400, "INVALID_REQUEST"), body
        assert (await admin.post("topics", {"name": "a/b"})).json["error"] == "INVALID_TOPIC_EXCEPTION"


async def test_the_setting_turns_it_off(tmp_path: Path) -> None:
    async with console(tmp_path, {"warmlog.ui": "false"}) as site:
        for path in ("/ui", "/api/v1/status"):
            reply = await site.send(path)
            assert reply.status == 404
            assert b"warmlog.ui" in reply.body
        assert (await site.send("/healthz")).status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nothing", 404),
        ("topics/a/b", 404),
        ("topics/%ff", 400),
        ("topics?page=-1", 400),
        ("topics?page=x", 400),
        ("topics?sort=colour", 400),
        ("topics?filter=%ff", 400),
        ("topics?" + "&".join(["a=1"] * 300), 400),
        ("topics/missing", 404),
        ("topics/missing/partitions/0", 404),
        ("topics/missing/partitions/0/records", 404),
        ("topics/missing/partitions/x/records", 400),
        ("topics/missing/partitions/0/explain?offset=0", 404),
        ("groups/missing", 404),
        ("residency?" + "&".join(f"topic=t{number}" for number in range(51)), 400),
    ],
)
async def test_a_bad_request_has_an_error_that_says_what_is_wrong(tmp_path: Path, path: str, status: int) -> None:
    async with console(tmp_path) as site:
        reply = await site.send(f"/api/v1/{path}")
        assert reply.status == status, reply.body
        assert reply.json["message"]


async def test_connections_are_kept_between_requests_with_bodies(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "admin") as site:
        admin: Site = site.by("admin")
        one = (await admin.post("topics", {"name": "one"}, Connection="keep-alive, close")).status
        assert one == 200
        host, _, port = site.broker.addresses.http.rpartition(":")
        request = b"GET /api/v1/status HTTP/1.1\r\nHost: a\r\n\r\n"
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(request * 2)
            answer = b""
            while answer.count(b"HTTP/1.1 401") < 2:
                answer += await stream.receive_some()
