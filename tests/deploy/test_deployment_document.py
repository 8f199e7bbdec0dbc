"""Check the commands of docs/deployment.md as far as possible without Docker, a cluster and systemd."""

import re
import subprocess
import textwrap

import pytest
import yaml

from tests.deploy.files import DEPLOY, ROOT, load

TEXT = (ROOT / "docs" / "deployment.md").read_text()
BLOCKS = [textwrap.dedent(found) for found in re.findall(r"^ *```sh\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0][:40])
def test_the_shell_understands_it(block: str) -> None:
    done = subprocess.run(["sh", "-n"], input=block, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_file_that_is_named_is_there() -> None:
    commands = "\n".join(BLOCKS)
    named = set(re.findall(r"\b(?:deploy|docs|requirements)/[\w./-]*\w", commands))
    named |= {f"deploy/{name}" for name in re.findall(r"`((?:systemd|kubernetes|grafana|optional)/[\w./-]*)`", TEXT)}
    named = {name.replace("deploy/optional", "deploy/kubernetes/optional") for name in named}
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_names_of_the_compose_file_are_right() -> None:
    compose = load(DEPLOY / "compose.yaml")
    assert f"{compose['name']}_data" in TEXT
    assert "data" in compose["volumes"]
    text = (DEPLOY / "compose.yaml").read_text()
    variables = set(re.findall(r"\b(WARMLOG_BIND|WARMLOG_ADVERTISED_LISTENERS|GRAFANA_ADMIN_PASSWORD)\b", TEXT))
    assert len(variables) == 3
    assert all(f"${{{name}" in text for name in variables)


def test_the_image_that_is_replaced_is_the_one_that_is_used() -> None:
    (replaced,) = set(re.findall(r"sed 's#(.*?)#", TEXT))
    assert (DEPLOY / "kubernetes" / "statefulset.yaml").read_text().count(replaced) == 1


def test_the_rules_for_the_operator_are_made_of_the_alerts() -> None:
    (block,) = [block for block in BLOCKS if "PrometheusRule" in block]
    command = block.partition("| kubectl")[0]
    made = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    rule = yaml.safe_load(made)
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == load(DEPLOY / "alerts.yml")
