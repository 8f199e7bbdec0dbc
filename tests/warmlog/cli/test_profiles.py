from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmlog.broker.settings.loading import FOREIGN_VARIABLES, load_settings
from warmlog.cli.profiles import VARIABLES
from warmlog.testing import Broker

Run = Callable[..., Any]


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of profiles, in a directory of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("WARMLOG_KAFKA", "")
    (tmp_path / "warmlog").mkdir()
    return tmp_path / "warmlog" / "profiles.toml"


def test_a_profile_names_the_addresses_of_a_cluster(
    run: Run, broker: Broker, profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles.write_text(
        f'[test]\nnative = "{broker.native}"\nkafka = "{broker.kafka}"\n[gone]\nnative = "127.0.0.1:1"\n'
    )
    monkeypatch.setenv("WARMLOG_NATIVE", "127.0.0.1:2")
    assert run("--profile", "test", "topic", "create", "profiled").status == 0
    assert run("--profile", "test", "partition", "moves").status == 0
    assert "127.0.0.1:1" in run("--profile", "gone", "topic", "list").err
    monkeypatch.setenv("WARMLOG_PROFILE", "test")
    assert b"profiled" in run("topic", "list").out
    assert "127.0.0.1:3" in run("topic", "list", "--native", "127.0.0.1:3").err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file or directory"),
        ("[other]", "no profile 'test' in "),
        ("test = 5", "no profile 'test' in "),
        ("[test]\nnativ = 'h:1'", "nativ is not one of native, kafka"),
        (
            "[test]\nnative = 5",
            "native is not one of native, kafka, tls_ca, tls_certificate, user, password_file, mechanism",
        ),
        ("[test", "profiles.toml: "),
    ],
)
def test_a_wrong_profile_is_refused_in_one_line(run: Run, profiles: Path, text: str | None, message: str) -> None:
    if text is not None:
        profiles.write_text(text)
    done = run("--profile", "test", "topic", "list")
    assert done.status == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_variables_of_clients_are_no_settings_of_a_broker() -> None:
    secrets = ("WARMLOG_PASSWORD", "WARMLOG_TOKEN", "WARMLOG_CLIENT_SECRET")
    for name in (*VARIABLES.values(), *secrets):
        assert FOREIGN_VARIABLES.fullmatch(name), name
    load_settings(environ=dict.fromkeys((*VARIABLES.values(), *secrets), "x"))
