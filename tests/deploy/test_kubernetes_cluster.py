"""deploy/kubernetes-cluster as kustomize builds it: by Kubernetes' own strict schemas, and how it fits together."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import DEPLOY
from tests.deploy.kubernetes import VERSIONS, Object, errors, expanded
from tests.requires import lacks
from warmlog.broker.cluster.etcd.endpoints import parse_endpoints
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.settings import Settings

pytestmark = pytest.mark.interop

DIRECTORY = DEPLOY / "kubernetes-cluster"


@pytest.fixture(scope="module")
def built() -> dict[tuple[str, str], Object]:
    """All objects, by kind and name."""
    if (kustomize := shutil.which("kustomize")) is not None:
        command = [kustomize, "build", str(DIRECTORY)]
    elif (kubectl := shutil.which("kubectl")) is not None:
        command = [kubectl, "kustomize", str(DIRECTORY)]
    else:
        lacks("kustomize and kubectl are missing (go install sigs.k8s.io/kustomize/kustomize/v5@v5.6.0)")
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return {(found["kind"], found["metadata"]["name"]): found for found in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def brokers(built: dict[tuple[str, str], Object]) -> Object:
    """The StatefulSet of the brokers."""
    return built["StatefulSet", "warmlog"]


@pytest.fixture(scope="module")
def members(built: dict[tuple[str, str], Object]) -> Object:
    """The StatefulSet of etcd."""
    return built["StatefulSet", "etcd"]


def pod(stateful_set: Object) -> Object:
    spec: Object = stateful_set["spec"]["template"]["spec"]
    return spec


def container(stateful_set: Object) -> Object:
    (found,) = pod(stateful_set)["containers"]
    made: Object = found
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_valid(built: dict[tuple[str, str], Object], schemas: Path, version: str) -> None:
    assert [message for found in built.values() for message in errors(found, schemas, version)] == []


def test_nothing_lies_unused_in_the_folder(built: dict[tuple[str, str], Object]) -> None:
    listed = (DIRECTORY / "kustomization.yaml").read_text()
    assert [path.name for path in DIRECTORY.iterdir() if path.name not in listed] == ["kustomization.yaml"]


def test_brokers_are_secured_by_a_secret_that_they_share(brokers: Object) -> None:
    assert "--secure" in container(brokers)["args"]
    assert "WARMLOG_USER" in yaml.safe_dump(brokers)
    (mount,) = [each for each in container(brokers)["volumeMounts"] if each["mountPath"] == "/secrets"]
    (volume,) = [each for each in pod(brokers)["volumes"] if each["name"] == mount["name"]]
    assert volume["secret"] == {"secretName": "warmlog-secrets", "defaultMode": 0o440}
    assert [each["metadata"]["name"] for each in brokers["spec"]["volumeClaimTemplates"]] == ["data"]


def test_a_brokers_id_is_the_number_of_its_pod(brokers: Object, tmp_path: Path) -> None:
    """By running the command of the container with another `warmlog`."""
    spoken = tmp_path / "warmlog"
    spoken.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    spoken.chmod(0o755)
    command = [*container(brokers)["command"], *container(brokers)["args"]]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "POD_NAME": "warmlog-2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[:-2] == container(brokers)["args"]
    assert words[-2:] == ["--set", "node.id=2"]


def test_settings_name_every_member_of_etcd(
    built: dict[tuple[str, str], Object], members: Object, tmp_path: Path
) -> None:
    (name,) = [name for kind, name in built if kind == "ConfigMap"]
    (text,) = built["ConfigMap", name]["data"].values()
    path = tmp_path / "warmlog.toml"
    path.write_text(text)
    settings = load_settings(path, {"WARMLOG_NODE_ID": "0", "WARMLOG_BROKER_RACK": ""})
    assert settings.default_replication_factor == 3
    hosts = [f"etcd-{number}.{members['spec']['serviceName']}" for number in range(members["spec"]["replicas"])]
    assert [endpoint.host for endpoint in parse_endpoints(settings.warmlog_cluster_etcd)] == hosts
    assert ("Service", members["spec"]["serviceName"]) in built


def test_members_of_etcd_know_each_other(members: Object) -> None:
    replicas = range(members["spec"]["replicas"])
    words = container(members)["command"][1:]
    options = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
    peers = [
        f"etcd-{number}=" + expanded(options["initial-advertise-peer-urls"], POD_NAME=f"etcd-{number}")
        for number in replicas
    ]
    assert options["initial-cluster"].split(",") == peers
    assert options["auto-compaction-mode"] == "periodic"
    data, certificates = container(members)["volumeMounts"]
    assert options["data-dir"].startswith(data["mountPath"])
    files = [path for option, path in options.items() if option.endswith("-file")]
    assert len(files) == 6
    assert all(path.startswith(f"{certificates['mountPath']}/") for path in files)


def test_etcd_is_reached_with_certificates_only(built: dict[tuple[str, str], Object], members: Object) -> None:
    words = container(members)["command"]
    assert {"--client-cert-auth", "--peer-client-cert-auth"} <= set(words)
    assert [word for word in words if "http://" in word] == ["--listen-metrics-urls=http://0.0.0.0:2381"]
    probed = {container(members)[name]["httpGet"]["port"] for name in ("livenessProbe", "readinessProbe")}
    assert probed == {"metrics"}
    for stateful_set in ("warmlog", "etcd"):
        found = pod(built["StatefulSet", stateful_set])
        mounted = {each["name"] for each in found["containers"][0]["volumeMounts"]}
        volumes = {each["name"] for each in found.get("volumes", ())}
        assert mounted == volumes | {"data"}


def admits(policy: Object, port: str, **labels: str) -> bool:
    """Return whether a policy lets pods of its namespace with these labels reach a port."""
    return any(
        {"port": port} in rule["ports"]
        and any(
            each["podSelector"]["matchLabels"].items() <= labels.items()
            for each in rule["from"]
            if "podSelector" in each
        )
        for rule in policy["spec"]["ingress"]
    )


def test_policies_admit_brokers_and_members_of_etcd(
    built: dict[tuple[str, str], Object], brokers: Object, members: Object
) -> None:
    etcd = built["NetworkPolicy", "etcd"]
    optional = yaml.safe_load((DEPLOY / "kubernetes/optional/networkpolicy.yaml").read_text())
    a_broker = brokers["spec"]["template"]["metadata"]["labels"]
    a_member = members["spec"]["template"]["metadata"]["labels"]
    a_client = {"warmlog-client": "true"}
    for policy, labels in ((optional, a_broker), (etcd, a_member)):
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert admits(optional, "kafka", **a_broker), "followers fetch from leaders"
    assert admits(optional, "kafka", **a_client)
    assert admits(etcd, "client", **a_broker)
    assert admits(etcd, "peer", **a_member)
    assert not any(admits(etcd, port, **a_client) for port in ("client", "peer", "metrics"))
    assert not admits(etcd, "peer", **a_broker)


@pytest.mark.parametrize("name", ["warmlog", "etcd"])
def test_one_of_three_may_be_away(built: dict[tuple[str, str], Object], name: str) -> None:
    budget, stateful_set = built["PodDisruptionBudget", name], built["StatefulSet", name]
    labels = stateful_set["spec"]["template"]["metadata"]["labels"]
    assert stateful_set["spec"]["replicas"] == 3
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    spread = {each["topologyKey"]: each for each in pod(stateful_set)["topologySpreadConstraints"]}
    assert spread["kubernetes.io/hostname"]["whenUnsatisfiable"] == "DoNotSchedule"
    assert all(each["labelSelector"]["matchLabels"].items() <= labels.items() for each in spread.values())
    assert set(stateful_set["spec"]["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


def test_a_stop_may_wait_for_replicas_hand_over_and_flush(brokers: Object) -> None:
    hook: list[Any] = container(brokers)["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:2] == ["timeout", "60"]
    stop_s = 2 * Settings().warmlog_stop_timeout_ms / 1000  # to hand over, and to answer
    assert pod(brokers)["terminationGracePeriodSeconds"] >= 60 + stop_s + 60
