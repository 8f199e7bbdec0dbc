"""`make audit`: which locked versions are affected, and what counts as not looked up."""

import json
from pathlib import Path

import pytest

from interop.dependency_audit import (
    NPM,
    PYPI,
    ROOT,
    AuditError,
    Package,
    console_packages,
    from_npm,
    from_pip_audit,
    is_affected,
    offline,
    pip_audit,
    python_packages,
)

ADVISORY = """
id: PYSEC-2023-1
modified: 2024-02-17T07:18:27.688636Z
aliases: [CVE-2023-1]
affected:
- package: {ecosystem: PyPI, name: Some_Package}
  ranges:
  - type: GIT
    events: [{introduced: "0"}, {fixed: f09c261}]
  - type: ECOSYSTEM
    events: [{introduced: "3.1"}, {fixed: 41.0.6}, {introduced: "42"}, {last_affected: "42.1"}]
  versions: ["1.0", 2.0.dev1]
"""


@pytest.fixture
def advisories(tmp_path: Path) -> Path:
    (tmp_path / "vulns" / "some").mkdir(parents=True)
    (tmp_path / "vulns" / "some" / "PYSEC-2023-1.yaml").write_text(ADVISORY)
    withdrawn = {"id": "PYSEC-2023-2", "withdrawn": "2023-01-01T00:00:00Z", "affected": [
        {"package": {"ecosystem": PYPI, "name": "some-package"}, "versions": ["5.0"]}
    ]}  # fmt: skip
    (tmp_path / "vulns" / "withdrawn.json").write_text(json.dumps(withdrawn))
    (tmp_path / "workflow.yaml").write_text("on: push")
    return tmp_path


def package(version: str, ecosystem: str = PYPI, name: str = "some-package") -> Package:
    return Package(ecosystem, name, version, "dev.lock")


def test_affected_versions_are_named_with_their_fix(advisories: Path) -> None:
    versions = ("1.0", "2.0.dev1", "3.0", "3.1", "5.0", "41.0.5", "41.0.6", "41.9", "42", "42.1", "42.1.1")
    found = offline([package(each) for each in versions], advisories)
    assert [line.split()[2].rstrip(":") for line in found] == ["1.0", "2.0.dev1", "3.1", "5.0", "41.0.5", "42", "42.1"]
    assert found[0] == "dev.lock: some-package 1.0: PYSEC-2023-1, CVE-2023-1, fixed in 41.0.6"


def test_packages_of_other_names_and_ecosystems_are_not_affected(
    advisories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offline([package("5.0", name="other"), package("5.0", NPM), package("5.0", NPM, "preact")], advisories) == []
    printed = capsys.readouterr().out
    assert "1 advisories, the newest of 2024-02-17" in printed
    assert "not looked up, as there are no advisories for their ecosystem: preact, some-package" in printed


def test_a_directory_without_advisories_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="there are no advisories"):
        offline([package("5.0")], tmp_path)


def test_a_version_that_cannot_be_compared_is_an_error() -> None:
    ranges = [{"type": "SEMVER", "events": [{"introduced": "0"}]}]
    assert is_affected("1.2.3-beta.1", {"ranges": ranges})
    with pytest.raises(AuditError, match="cannot compare the version 'latest'"):
        is_affected("latest", {"ranges": ranges})


def test_all_locks_are_read() -> None:
    locked = list(python_packages(ROOT / "requirements"))
    assert {each.lock for each in locked} == {path.name for path in (ROOT / "requirements").glob("*.lock")}
    for path in (ROOT / "requirements").glob("*.lock"):
        lines = [line for line in path.read_text().splitlines() if line and line[0] not in " #"]
        assert len(lines) == sum(each.lock == path.name for each in locked), path
    assert ("pip-audit", "audit.lock") in {(each.name, each.lock) for each in locked}
    assert {each.name for each in console_packages(ROOT / "warmlog" / "ui")} == {"htm", "preact", "uplot"}


def test_packages_without_an_answer_are_not_taken_for_sound() -> None:
    sound = {"name": "anyio", "version": "4.0", "vulns": []}
    skipped = {"name": "attrs", "skip_reason": "Dependency not found on PyPI and could not be audited"}
    affected = {"name": "idna", "version": "3.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.7"]}]}
    assert from_pip_audit(json.dumps({"dependencies": [sound, affected]})) == ["idna 3.0: PYSEC-1, fixed in 3.7"]
    with pytest.raises(AuditError, match="no answer about 1 of 2 packages: attrs"):
        from_pip_audit(json.dumps({"dependencies": [sound, skipped]}))
    with pytest.raises(AuditError, match="needs a network: ConnectionError: no route"):
        from_pip_audit("Traceback:\nConnectionError: no route")
    with pytest.raises(AuditError, match="no-such-program is not installed"):
        pip_audit("no-such-program", ROOT / "requirements")


def test_what_npm_answers_is_read() -> None:
    assert from_npm(json.dumps({"vulnerabilities": {}})) == []
    found = {"vulnerabilities": {"preact": {"range": "<11.1", "severity": "high"}}}
    assert from_npm(json.dumps(found)) == ["preact <11.1: high, see `npm audit`"]
    with pytest.raises(AuditError, match="needs a network: 405 Method Not Allowed"):
        from_npm(json.dumps({"message": "405 Method Not Allowed"}))
