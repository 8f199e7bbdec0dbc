"""The pipeline with a broker that encrypts and asks for a login: options, jobs, and Spark's workers."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.issuer import Issuer
from tests.warmlog.cli.test_secure import served
from tests.warmlog.cli.test_tls import run
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink.options import write_options
from warmlog.pipeline.source.input import plan_batch
from warmlog.pipeline.source.options import read_options
from warmlog.pipeline.source.ranges import Bounds
from warmlog.testing import Broker

RECORDS = 50


# What docs/authentication.md names for users of Spark.
RIGHTS = {
    "reader": (("read", "--topic", "orders"),),
    "writer": (
        ("read", "--topic", "mine"),
        ("write", "--topic", "mine"),
        ("read", "--group-prefix", "warmlog-sink-"),
        ("write", "--transactional-id-prefix", "warmlog-sink-"),
    ),
}


class Secured(NamedTuple):
    """A broker that was started with --secure, with 50 records in the topic `orders`."""

    native: str
    kafka: str
    ca: Path
    password_file: Path

    @property
    def options(self) -> dict[str, str]:
        """Of the data source."""
        return {"bootstrap": self.native, "tlsCa": str(self.ca), "user": "admin"} | {
            "passwordFile": str(self.password_file)
        }

    def user(self, name: str, rights: Iterable[tuple[str, str, str]]) -> dict[str, str]:
        """The options of a user that has these rights, and no others."""
        file = self.password_file.with_name(f"{name}.password")
        file.write_text("of-a-user\n")
        file.chmod(0o600)
        kafka = "--kafka", self.kafka
        created = run(*self.login, "user", "create", name, "--new-password-file", file, *kafka)
        assert created[0] == 0, created
        for operation, option, resource in rights:
            command = "acl", "add", "allow", f"User:{name}", "--operation", operation, option, resource, *kafka
            added = run(*self.login, *command)
            assert added[0] == 0, added
        return {**self.options, "user": name, "passwordFile": str(file)}

    @property
    def login(self) -> tuple[str | Path, ...]:
        """The same for a command."""
        return "--tls-ca", self.ca, "--user", "admin", "--password-file", self.password_file


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    with served(directory) as (_, addresses):
        secrets = directory / "data-secrets"
        broker = Secured(addresses["native"], addresses["kafka"], secrets / "ca.pem", secrets / "admin.password")
        records = "".join(f"{at}\n" for at in range(RECORDS))
        created = run(*broker.login, "topic", "create", "orders", "--partitions", "2", "--native", broker.native)
        assert created[0] == 0, created
        written = run(*broker.login, "produce", "orders", "--native", broker.native, given=records)
        assert written[0] == 0, written
        yield broker


@pytest.mark.interop  # starts a Spark of its own
def test_spark_reads_and_writes(spark: Any, secured: Secured) -> None:
    options = secured.options
    frame = spark.read.format("warmlog").options(**options, topic="orders").load()
    assert sorted(int(row.value) for row in frame.collect()) == list(range(RECORDS))
    frame.select("value").write.format("warmlog").options(**options, topic="copy").mode("append").save()
    transactional = {**options, "transactional": "true"}
    frame.select("value").write.format("warmlog").options(**transactional, topic="copy").mode("append").save()
    assert spark.read.format("warmlog").options(**options, topic="copy").load().count() == 2 * RECORDS


@pytest.mark.interop
@pytest.mark.parametrize("transactional", ["false", "true"])
def test_rights_that_spark_needs(spark: Any, secured: Secured, transactional: str) -> None:
    created = run(
        *secured.login, "topic", "create", "mine", "--partitions", "2", "--if-not-exists", "--native", secured.native
    )
    assert created[0] == 0, created
    reader, writer = (secured.user(f"{kind}-{transactional}", rights) for kind, rights in RIGHTS.items())
    frame = spark.read.format("warmlog").options(**reader, topic="orders").load()
    assert frame.count() == RECORDS
    options = {**writer, "transactional": transactional, "topic": "mine", "autoCreate": "false"}
    write = frame.select("value").write.format("warmlog").mode("append")
    write.options(**options).save()
    with pytest.raises(Exception, match=r"not authorized|AUTHORIZATION_FAILED"):
        write.options(**{**options, **reader}).save()
    with pytest.raises(Exception, match=r"no topic orders|not authorized"):
        spark.read.format("warmlog").options(**writer, topic="orders").load().count()


@pytest.mark.interop  # takes many seconds
def test_jobs_use_the_login_of_the_command(secured: Secured) -> None:
    common = "--topic", "orders", "--bootstrap", secured.native
    status, shown = run(*secured.login, "pipeline", "compact-report", *common, "--json")
    assert status == 0, shown
    again = "--native", secured.native, "--to-topic", "again"
    status, shown = run(*secured.login, "pipeline", "replay", *common, *again)
    assert status == 0, shown
    status, shown = run(*secured.login, "consume", "again", "--until-end", "--native", secured.native)
    assert (status, sorted(map(int, shown.split()))) == (0, list(range(RECORDS)))
    status, shown = run("pipeline", "compact-report", *common)
    assert status != 0
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"password": "wrong"}, "login with SCRAM-SHA-512 failed: invalid credentials"),
        ({"passwordFile": "/none"}, "/none: No such file or directory"),
        ({"tlsCa": "/none"}, "/none: No such file or directory"),
        ({"mechanism": "PLAIN", "password": "wrong"}, "the listener's mechanisms: SCRAM-SHA-256, SCRAM-SHA-512"),
    ],
)
def test_what_keeps_a_read_out_is_told(secured: Secured, given: dict[str, str], problem: str) -> None:
    options = {**secured.options, "topic": "orders", **given}
    if "password" in given:
        del options["passwordFile"]
    with pytest.raises(PipelineError, match=problem) as raised:
        plan_batch(read_options(options), Bounds())
    assert "wrong" not in str(raised.value).replace(problem, "")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"user": "bob"}, "option user needs either passwordFile or password"),
        ({"user": "bob", "password": "a", "passwordFile": "b"}, "option user needs either passwordFile or password"),
        ({"password": "secret"}, "option password needs user"),
        ({"mechanism": "PLAIN"}, "option mechanism needs user"),
        ({"user": "bob", "password": "a", "tokenFile": "t"}, "options user and tokenFile exclude each other"),
        ({"tlsCertificate": "c.pem"}, "option tlsCertificate needs tlsCa"),
        ({"user": "bob", "password": "a", "mechanism": "GSSAPI"}, "option mechanism: 'GSSAPI' is not SCRAM-SHA-256"),
        ({"user": "bob", "password": " "}, "option password: what was given is not a password"),
        ({"user": "bob", "password": "secret", "PASSWORD": "other"}, "option password is given twice$"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "no option 'kafka.sasl.mechanism'.* use bootstrap, tlsCa, user"),
    ],
)
def test_options_that_make_no_login(given: dict[str, str], problem: str) -> None:
    for parse in (read_options, write_options):
        with pytest.raises(PipelineError, match=problem):
            parse({"bootstrap": "h:9091", "topic": "t", **given})


def test_a_login_needs_brokers() -> None:
    for given in ({"user": "bob", "password": "secret"}, {"tlsCa": "ca.pem"}):
        with pytest.raises(PipelineError, match=f"option {next(iter(given))} needs bootstrap"):
            read_options({"path": "/data", "topic": "t", **given})


def test_a_token_is_read_for_each_login(tmp_path: Path) -> None:
    issuer = Issuer()
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,NATIVE://127.0.0.1:0",
        "listener.security.protocol.map": "NATIVE:SASL_PLAINTEXT",
        **issuer.settings(),
    }
    (tmp_path / "keys.json").write_bytes(issuer.jwks)
    settings["sasl.oauthbearer.jwks.endpoint.url"] = (tmp_path / "keys.json").as_uri()
    with Broker(settings=settings) as broker:
        token = tmp_path / "token"
        options = {"bootstrap": broker.native, "tokenFile": str(token), "topic": "orders"}
        with pytest.raises(PipelineError, match=f"{token}: No such file"):
            plan_batch(read_options(options), Bounds())
        token.write_text(issuer.token())
        status, shown = run("--token-file", token, "topic", "create", "orders", "--native", broker.native)
        assert status == 0, shown
        assert plan_batch(read_options(options), Bounds()).splits == []
        status, shown = run(
            "--token-file", token, "pipeline", "compact-report", "--topic", "orders", "--bootstrap", broker.native
        )
        assert status == 0, shown
        other = run("pipeline", "compact-report", "--topic", "orders", "--bootstrap", broker.native, WARMLOG_TOKEN="x")
        assert (other[0], "--token-file only" in other[1]) == (2, True)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Brokers(addresses="h:1", user="bob", password="secret"))
