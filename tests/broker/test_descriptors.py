"""How the process's descriptors are shared out among logs and clients."""

import resource

import pytest

from warmlog.broker.process import connections_limit, open_files_limit
from warmlog.broker.settings.loading import load_settings


@pytest.mark.parametrize("limit", [64, 200, 1024, 20_000, 1 << 20])
@pytest.mark.parametrize("own", [[], ["max.connections=10"], ["warmlog.open.files=50"], ["warmlog.open.files=100000"]])
def test_clients_leave_the_logs_their_descriptors_and_some_to_spare(
    monkeypatch: pytest.MonkeyPatch, limit: int, own: list[str]
) -> None:
    """Connections took all there were; then appends of those that were served already were refused."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    settings = load_settings(assignments=own)
    connections, files = connections_limit(settings), open_files_limit(settings)
    assert 1 <= connections <= settings.max_connections
    assert connections == 1 or connections + files + min(limit // 4, 256) <= limit


def test_what_is_asked_for_holds_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20_000, 20_000))
    settings = load_settings(assignments=["max.connections=5000", "warmlog.open.files=1000"])
    assert (connections_limit(settings), open_files_limit(settings)) == (5000, 1000)
