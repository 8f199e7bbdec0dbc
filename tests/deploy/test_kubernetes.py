"""deploy/kubernetes: every manifest by Kubernetes' own strict schemas, and how they fit together."""

from pathlib import Path

import pytest
import yaml

from tests.deploy.files import DEPLOY, load
from tests.deploy.kubernetes import VERSIONS, Object, errors, expanded
from warmlog.broker.settings.listeners import advertised_addresses
from warmlog.broker.settings.loading import FOREIGN_VARIABLES, load_settings
from warmlog.broker.settings.settings import Settings

DIRECTORY = DEPLOY / "kubernetes"
MANIFESTS = sorted(path for path in DIRECTORY.rglob("*.yaml") if path.name != "kustomization.yaml")
CUSTOM = {"ServiceMonitor"}  # its schema is the operator's, not Kubernetes'


def objects() -> list[Object]:
    return [found for path in MANIFESTS for found in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> list[Object]:
    return [found for found in objects() if found["kind"] == kind]


STATEFUL_SET = of_kind("StatefulSet")[0]
POD = STATEFUL_SET["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "found", [each for each in objects() if each["kind"] not in CUSTOM], ids=lambda each: f"{each['kind']}"
)
def test_it_is_valid(found: Object, schemas: Path, version: str) -> None:
    assert errors(found, schemas, version) == []


@pytest.mark.parametrize(
    "wrong", [{"replica": 1}, {"replicas": "one"}, {"selector": {"matchLabel": {}}}, {"template": {"spec": {}}}]
)
def test_the_schema_finds_mistakes(schemas: Path, wrong: Object) -> None:
    assert errors({**STATEFUL_SET, "spec": {**STATEFUL_SET["spec"], **wrong}}, schemas, VERSIONS[-1])


def test_every_manifest_is_applied_or_optional() -> None:
    applied = {DIRECTORY / name for name in load(DIRECTORY / "kustomization.yaml")["resources"]}
    assert {path for path in MANIFESTS if path.parent.name != "optional"} == applied


def test_they_find_each_other() -> None:
    labels = STATEFUL_SET["spec"]["template"]["metadata"]["labels"]
    assert STATEFUL_SET["spec"]["selector"]["matchLabels"].items() <= labels.items()
    services = {service["metadata"]["name"]: service for service in of_kind("Service")}
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    for service in services.values():
        assert service["spec"]["selector"].items() <= labels.items()
        assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    headless = services[STATEFUL_SET["spec"]["serviceName"]]
    assert headless["spec"]["clusterIP"] == "None"
    (monitor,) = of_kind("ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= headless["metadata"]["labels"].items()
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports.keys()
    (policy,) = of_kind("NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == ports.keys()
    claims = {claim["metadata"]["name"] for claim in STATEFUL_SET["spec"]["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in POD["volumes"]} | claims
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == volumes


def test_the_probes_ask_what_the_broker_answers() -> None:
    paths = {name: CONTAINER[name]["httpGet"]["path"] for name in CONTAINER if name.endswith("Probe")}
    assert paths == {"livenessProbe": "/healthz", "startupProbe": "/healthz", "readinessProbe": "/readyz"}


def test_clients_are_told_the_name_that_the_headless_service_makes() -> None:
    variables = {each["name"]: each.get("value") for each in CONTAINER["env"]}
    namespace = STATEFUL_SET["metadata"]["namespace"]
    value = expanded(variables["WARMLOG_ADVERTISED_LISTENERS"], POD_NAME="warmlog-0", POD_NAMESPACE=namespace)
    settings = load_settings(environ={"WARMLOG_ADVERTISED_LISTENERS": value})
    host = f"warmlog-0.{STATEFUL_SET['spec']['serviceName']}.warmlog.svc.cluster.local"
    assert advertised_addresses(settings).get("kafka") == (host, 9092)
    assert advertised_addresses(settings).get("native") == (host, 9091)


def test_no_variable_of_kubernetes_is_taken_for_a_setting() -> None:
    """The service `warmlog` makes such names; those of others in the namespace are switched off."""
    assert POD["enableServiceLinks"] is False
    assert FOREIGN_VARIABLES.fullmatch("WARMLOG_SERVICE_PORT_KAFKA")
    assert FOREIGN_VARIABLES.fullmatch("WARMLOG_PORT_9092_TCP_ADDR")


def test_its_settings_are_settings_and_its_arguments_arguments() -> None:
    from warmlog.cli.serve import serve

    assert load_settings(DIRECTORY / "warmlog.toml").log_retention_bytes == 4 << 30
    command, *options = CONTAINER["args"]
    context = serve.make_context(command, list(options))
    assert context.params["http"] == "0.0.0.0:9099"
    assert context.params["is_secure"]
    assert str(context.params["secrets_dir"]) == "/secrets"
    named = {expanded(host, POD_NAMESPACE="warmlog") for host in context.params["hosts"]}
    assert {"warmlog", "warmlog.warmlog.svc"} <= named
    assert str(context.params["config"]) == "/etc/warmlog/warmlog.toml"


def test_there_is_one_broker_with_time_to_stop_and_a_volume_that_stays() -> None:
    assert STATEFUL_SET["spec"]["replicas"] == 1
    assert POD["terminationGracePeriodSeconds"] >= 60 + Settings().warmlog_stop_timeout_ms / 1000
    assert set(STATEFUL_SET["spec"]["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    assert CONTAINER["resources"]["limits"]["memory"]
