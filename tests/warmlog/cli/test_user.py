"""`warmlog user`, and the login of commands."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from warmlog.cli.root import root
from warmlog.testing import Broker

SECURED = {
    "listeners": "SASL://127.0.0.1:0,NATIVE://127.0.0.1:0",
    "listener.security.protocol.map": "SASL:SASL_PLAINTEXT",
    "connection.failed.authentication.delay.ms": "0",
}
Run = Callable[..., Result]


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(root, arguments, input=stdin)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options set variables of the process, which the next command would read."""
    for name in ("WARMLOG_USER", "WARMLOG_PASSWORD", "WARMLOG_PASSWORD_FILE", "WARMLOG_SASL_MECHANISM"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def password(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text("open sesame\n")
    file.chmod(0o600)
    return str(file)


@pytest.fixture
def data_dir(tmp_path: Path, password: str) -> Path:
    """A data directory with a first user."""
    found = tmp_path / "data"
    result = run("user", "create", "admin", "--new-password-file", password, "--data-dir", str(found))
    assert (result.exit_code, result.stdout) == (0, "user admin can log in with SCRAM-SHA-256 and SCRAM-SHA-512\n")
    return found


@pytest.fixture
def kafka(data_dir: Path) -> Iterator[str]:
    with Broker(data_dir=data_dir, settings=SECURED) as broker:
        yield broker.kafka


def test_the_first_user_creates_others_which_log_in(kafka: str, password: str) -> None:
    admin = ("--user", "admin", "--password-file", password)
    created = run(*admin, "user", "create", "bob", "--new-password-file", "-", "--kafka", kafka, stdin="s3cret\n")
    assert created.exit_code == 0
    listed = run(*admin, "user", "list", "--kafka", kafka, "--json")
    assert [json.loads(line) for line in listed.stdout.splitlines()] == [
        {"user": name, "mechanisms": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}} for name in ("admin", "bob")
    ]
    assert "s3cret" not in listed.output
    only = run(*admin, "user", "delete", "bob", "--mechanism", "SCRAM-SHA-512", "--kafka", kafka)
    assert (only.exit_code, only.stdout) == (0, "user bob: deleted SCRAM-SHA-512\n")
    assert "bob    SCRAM-SHA-256\n" in run(*admin, "user", "list", "--kafka", kafka).stdout
    assert run(*admin, "user", "delete", "bob", "--kafka", kafka).exit_code == 0
    gone = run(*admin, "user", "delete", "bob", "--kafka", kafka)
    assert (gone.exit_code, "user bob has no credentials" in gone.stderr) == (1, True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "closed the connection"),
        (("--user", "admin"), "login with SCRAM-SHA-512 failed: invalid credentials"),
        (("--user", "nobody"), "login with SCRAM-SHA-512 failed: invalid credentials"),
        (("--user", "admin", "--mechanism", "PLAIN"), "does not enable PLAIN, but SCRAM-SHA-256, SCRAM-SHA-512"),
    ],
)
def test_others_get_one_line(kafka: str, options: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMLOG_PASSWORD", "wrong")
    result = run(*options, "user", "list", "--kafka", kafka)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert why in result.stderr
    assert "wrong" not in result.output


def test_a_data_directory_in_use_and_a_password_for_all_are_refused(data_dir: Path, kafka: str, password: str) -> None:
    used = run("user", "create", "eve", "--new-password-file", password, "--data-dir", str(data_dir))
    assert (used.exit_code, used.stderr.count("\n")) == (1, 1)
    Path(password).chmod(0o644)
    for options in (
        ("--user", "admin", "--password-file", password, "user", "list", "--kafka", kafka),
        ("user", "create", "eve", "--new-password-file", password, "--kafka", kafka),
    ):
        result = run(*options)
        assert "every user of this machine may read it" in result.stderr


def test_a_command_says_what_a_login_needs(kafka: str) -> None:
    assert "--user: needs --password-file" in run("--user", "admin", "user", "list", "--kafka", kafka).stderr
    assert "--new-password-file: needed" in run("user", "create", "eve", "--kafka", kafka).stderr
