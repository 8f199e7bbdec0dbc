"""Alerts: by promtool, each with a test that shows it fire, and a section that says what to do."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.conftest import Tool
from tests.deploy.files import DEPLOY, ROOT, alerts, load

TESTS = Path(__file__).with_name("alerts_test.yml")
RUNBOOK = (ROOT / "docs" / "alerts.md").read_text()
CONFIGURATION = ("prometheus.yml", "alerts.yml", "targets.yml", "alertmanagers.yml")


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """The files that Prometheus reads, and the tests of the rules, together."""
    for name in CONFIGURATION:
        shutil.copy(DEPLOY / name, tmp_path)
    shutil.copy(TESTS, tmp_path)
    return tmp_path


def promtool(tool: Tool, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool("promtool"), *arguments], cwd=directory, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.interop
def test_promtool_finds_the_configuration_in_order(tool: Tool, configuration: Path) -> None:
    done = promtool(tool, configuration, "check", "config", "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr


@pytest.mark.interop
def test_alerts_fire_where_they_should_and_nowhere_else(tool: Tool, configuration: Path) -> None:
    done = promtool(tool, configuration, "test", "rules", TESTS.name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.interop
def test_the_tests_of_the_alerts_can_fail(tool: Tool, configuration: Path) -> None:
    rules = configuration / "alerts.yml"
    rules.write_text(rules.read_text().replace("_heartbeat_age_seconds > 600", "_heartbeat_age_seconds > 6000"))
    done = promtool(tool, configuration, "test", "rules", TESTS.name)
    assert done.returncode != 0
    assert "WarmlogCleanerDead" in done.stdout + done.stderr


def test_each_alert_is_seen_to_fire() -> None:
    fired = {
        case["alertname"]
        for test in load(TESTS)["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }  # fmt: skip
    assert fired == {rule["alert"] for rule in alerts()}


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_each_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"]
    document, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert document == "docs/alerts.md"
    sections = [heading.lower() for heading in re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)]
    assert sections.count(anchor) == 1
    assert anchor == str(rule["alert"]).lower()


def test_no_section_is_left_of_an_alert_that_is_gone() -> None:
    sections = set(re.findall(r"^## (Warmlog\w+)$", RUNBOOK, re.MULTILINE))
    assert sections == {rule["alert"] for rule in alerts()}
