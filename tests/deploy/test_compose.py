"""deploy/compose.yaml: by Compose's own schema, and what the schema cannot see."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from broker.settings.settings import Settings, load_settings
from tests.deploy.files import DEPLOY, ROOT, load

COMPOSE = load(DEPLOY / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
SECONDS = {"s": 1, "m": 60}


def seconds(text: str) -> int:
    return int(text[:-1]) * SECONDS[text[-1]]


def validator(schemas: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((schemas / "compose-spec.json").read_text()))


def test_it_is_valid(schemas: Path) -> None:
    assert [error.message for error in validator(schemas).iter_errors(COMPOSE)] == []


@pytest.mark.parametrize("wrong", [{"healtcheck": {}}, {"ports": 9092}, {"stop_grace_period": 5}])
def test_the_schema_finds_mistakes(schemas: Path, wrong: dict[str, Any]) -> None:
    services = {**SERVICES, "broker": {**SERVICES["broker"], **wrong}}
    assert list(validator(schemas).iter_errors({**COMPOSE, "services": services}))


def test_the_image_is_built_from_the_repository_alone() -> None:
    build = SERVICES["broker"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT.resolve()
    assert (ROOT / build.get("dockerfile", "Dockerfile")).is_file()
    copied = {line.split()[1].rstrip("/") for line in (ROOT / "Dockerfile").read_text().splitlines()
              if line.startswith("COPY ") and "--from" not in line}  # fmt: skip
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied <= let_in


@pytest.mark.parametrize("name", list(SERVICES))
def test_every_service_is_watched_restarted_and_bounded(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] == "CMD"
    limits = service["deploy"]["resources"]["limits"]
    assert limits["cpus"]
    assert limits["memory"]
    assert service["cap_drop"] == ["ALL"]
    assert ":" in service["image"]
    assert not service["image"].endswith(":latest")


def test_a_clean_stop_has_time_to_spare() -> None:
    assert seconds(SERVICES["broker"]["stop_grace_period"]) >= 60 + Settings().warmlog_stop_timeout_ms / 1000


def test_named_volumes_keep_what_is_to_stay() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]}
    named = {volume for volume in used if not volume.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    assert "data:/data" in SERVICES["broker"]["volumes"]


def test_what_is_mounted_is_there() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]]
    assert [path for path in mounted if path.startswith(".") and not (DEPLOY / path).exists()] == []


def test_only_this_machine_is_let_in_until_somebody_says_otherwise() -> None:
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    assert [port for port in ports if not port.startswith(("127.0.0.1:", "${WARMLOG_BIND:-127.0.0.1}:"))] == []


def test_its_settings_are_settings() -> None:
    variables = SERVICES["broker"]["environment"]
    environment = {name: value.partition(":-")[2].removesuffix("}") for name, value in variables.items()}
    assert load_settings(environ=environment).log_retention_hours == 168


def test_prometheus_scrapes_the_broker_at_its_port() -> None:
    (group,) = load(DEPLOY / "targets.yml")
    assert group["targets"] == ["broker:9099"]
    assert "broker" in SERVICES
    assert any(port.endswith(":9099") for port in SERVICES["broker"]["ports"])
