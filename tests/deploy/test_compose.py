"""The Compose files of deploy/: by Compose's own schema, and what the schema cannot see."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.deploy.compose import interpolate, services_of
from tests.deploy.files import DEPLOY, ROOT, load
from warmlog.broker.settings.listeners import advertised_addresses
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.settings import Settings

COMPOSE = load(DEPLOY / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
CLUSTER = services_of("compose-cluster.yaml")
BROKERS = ("broker-1", "broker-2", "broker-3")
FILES = ("compose.yaml", "compose-cluster.yaml")
EACH = [pytest.param(file, name, id=f"{file}-{name}") for file in FILES for name in services_of(file)]
SECONDS = {"s": 1, "m": 60}


def seconds(text: str) -> int:
    return int(text[:-1]) * SECONDS[text[-1]]


def validator(schemas: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((schemas / "compose-spec.json").read_text()))


@pytest.mark.parametrize("file", FILES)
def test_it_is_valid(schemas: Path, file: str) -> None:
    assert [error.message for error in validator(schemas).iter_errors(load(DEPLOY / file))] == []


@pytest.mark.parametrize("wrong", [{"healtcheck": {}}, {"ports": 9092}, {"stop_grace_period": 5}])
def test_the_schema_finds_mistakes(schemas: Path, wrong: dict[str, Any]) -> None:
    services = {**SERVICES, "broker": {**SERVICES["broker"], **wrong}}
    assert list(validator(schemas).iter_errors({**COMPOSE, "services": services}))


@pytest.mark.parametrize("service", [SERVICES["broker"], *map(CLUSTER.get, ("cluster", *BROKERS))])
def test_the_image_is_built_from_the_repository_alone(service: dict[str, Any]) -> None:
    build = service["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT.resolve()
    assert (ROOT / build.get("dockerfile", "Dockerfile")).is_file()
    copied = {line.split()[1].rstrip("/") for line in (ROOT / "Dockerfile").read_text().splitlines()
              if line.startswith("COPY ") and "--from" not in line}  # fmt: skip
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied <= let_in


@pytest.mark.parametrize(("file", "name"), EACH)
def test_every_service_is_watched_restarted_and_bounded(file: str, name: str) -> None:
    service = services_of(file)[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] == "CMD"
    limits = service["deploy"]["resources"]["limits"]
    assert limits["cpus"]
    assert limits["memory"]
    assert service["cap_drop"] == ["ALL"]
    assert ":" in service["image"]
    assert not service["image"].endswith(":latest")


@pytest.mark.parametrize("broker", [SERVICES["broker"], *map(CLUSTER.get, BROKERS)])
def test_a_clean_stop_has_time_to_spare(broker: dict[str, Any]) -> None:
    """Twice `warmlog.stop.timeout.ms`: to hand over what it leads, and to answer requests."""
    assert seconds(broker["stop_grace_period"]) >= 60 + 2 * Settings().warmlog_stop_timeout_ms / 1000


@pytest.mark.parametrize("file", FILES)
def test_named_volumes_keep_what_is_to_stay(file: str) -> None:
    used = [volume.split(":")[0] for service in services_of(file).values() for volume in service.get("volumes", ())]
    named = [volume for volume in used if not volume.startswith(".")]
    assert sorted(set(named)) == sorted(load(DEPLOY / file)["volumes"])
    assert {volume for volume in named if named.count(volume) > 1} <= {"secrets"}  # which brokers share
    assert {"data:/data", "secrets:/secrets"} <= set(SERVICES["broker"]["volumes"])


@pytest.mark.parametrize("file", FILES)
def test_what_is_mounted_is_there(file: str) -> None:
    mounted = [volume.split(":")[0] for service in services_of(file).values() for volume in service.get("volumes", ())]
    assert [path for path in mounted if path.startswith(".") and not (DEPLOY / path).exists()] == []


@pytest.mark.parametrize("file", FILES)
def test_only_this_machine_is_let_in_until_somebody_says_otherwise(file: str) -> None:
    ports = [port for service in services_of(file).values() for port in service.get("ports", ())]
    assert [port for port in ports if not port.startswith(("127.0.0.1:", "${WARMLOG_BIND:-127.0.0.1}:"))] == []


def test_its_settings_are_settings() -> None:
    variables = SERVICES["broker"]["environment"]
    environment = {name: value.partition(":-")[2].removesuffix("}") for name, value in variables.items()}
    assert load_settings(environ=environment).log_retention_hours == 168


@pytest.mark.parametrize("broker", [SERVICES["broker"], *map(CLUSTER.get, BROKERS)])
def test_brokers_encrypt_and_ask_for_logins(broker: dict[str, Any]) -> None:
    from warmlog.cli.serve import serve

    command, *options = broker["command"]
    parsed = serve.make_context(command, options).params
    assert parsed["is_secure"]
    assert str(parsed["secrets_dir"]) == "/secrets"
    assert broker["environment"]["WARMLOG_TLS_CA"] == "/secrets/ca.pem"


def test_prometheus_scrapes_the_broker_at_its_port() -> None:
    (group,) = load(DEPLOY / "targets.yml")
    assert group["targets"] == ["broker:9099"]
    assert "broker" in SERVICES
    assert any(port.endswith(":9099") for port in SERVICES["broker"]["ports"])


def settings_of(name: str, **variables: str) -> Settings:
    """Return the settings of a broker of the cluster, with variables of the shell that starts it."""
    environment = CLUSTER[name]["environment"].items()
    return load_settings(environ={key: interpolate(str(value), variables) for key, value in environment})


def listeners(name: str) -> dict[str, int]:
    """Return the ports of a broker of the cluster, by listener."""
    given = [word.removeprefix("--").partition("=") for word in CLUSTER[name]["command"]]
    return {option: int(address.rpartition(":")[2]) for option, _, address in given if address.startswith("0.0.0.0:")}


def test_brokers_of_the_cluster_differ_in_id_rack_ports_and_data() -> None:
    settings = [settings_of(name) for name in BROKERS]
    assert [each.node_id for each in settings] == [1, 2, 3]
    assert len({each.broker_rack for each in settings}) == len(BROKERS)
    assert {each.default_replication_factor for each in settings} == {3}
    assert len({(each.warmlog_cluster_etcd, each.warmlog_cluster_id) for each in settings}) == 1
    ports = [port for name in BROKERS for port in listeners(name).values()]
    assert len(set(ports)) == len(ports) == 9


@pytest.mark.parametrize("host", ["localhost", "broker.example.org"])
@pytest.mark.parametrize("name", BROKERS)
def test_clients_and_brokers_reach_a_broker_at_the_same_address(name: str, host: str) -> None:
    variables = {} if host == "localhost" else {"WARMLOG_HOST": host}
    settings = settings_of(name, **variables)
    network = CLUSTER["cluster"]
    published = {port.rsplit(":", 2)[1]: port.rsplit(":", 2)[2] for port in network["ports"]}
    for listener in ("kafka", "native"):
        port = listeners(name)[listener]
        assert advertised_addresses(settings).get(listener) == (host, port)
        assert published[str(port)] == str(port)
    assert [interpolate(line, variables) for line in network["extra_hosts"]] == [f"{host}:127.0.0.1"]
    assert CLUSTER[name]["network_mode"] == CLUSTER["etcd"]["network_mode"] == "service:cluster"


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_of_the_cluster_is_healthy_when_it_serves(name: str) -> None:
    assert f"http://127.0.0.1:{listeners(name)['http']}/readyz" in CLUSTER[name]["healthcheck"]["test"][-1]
    assert CLUSTER[name]["depends_on"]["etcd"]["condition"] == "service_healthy"


def test_brokers_find_etcd_which_forgets_old_changes() -> None:
    words = dict(word.split("=", 1) for word in CLUSTER["etcd"]["command"] if "=" in word)
    assert words["--listen-client-urls"] == settings_of("broker-1").warmlog_cluster_etcd
    assert words["--auto-compaction-mode"] == "periodic"
    assert words["--auto-compaction-retention"]
    assert words["--data-dir"] == CLUSTER["etcd"]["volumes"][0].partition(":")[2]


def test_prometheus_scrapes_every_broker_of_the_cluster() -> None:
    (group,) = load(DEPLOY / "targets-cluster.yml")
    assert group["targets"] == [f"cluster:{listeners(name)['http']}" for name in BROKERS]
    assert "./targets-cluster.yml:/etc/prometheus/targets.yml:ro" in CLUSTER["prometheus"]["volumes"]
    assert "./targets.yml:/etc/prometheus/targets.yml:ro" not in CLUSTER["prometheus"]["volumes"]
