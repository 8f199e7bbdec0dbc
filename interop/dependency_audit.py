"""Check the locked dependencies for known vulnerabilities: `make audit`.

Online, pip-audit queries PyPI about the packages of requirements/*.lock that this platform installs, and npm queries
its registry about the packages of warmlog/ui.
Offline (`--advisories DIR`), versions are compared with advisories in OSV's format in a directory, which pip-audit
cannot read: a clone of github.com/pypa/advisory-database, or an ecosystem's export from OSV.

The exit status is 1 if a package is affected, 2 if packages could not be looked up, and otherwise 0. Offline, packages
of an ecosystem without advisories are listed and skipped: PyPA's database has none for npm.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT: Final = Path(__file__).parent.parent
PYPI, NPM = "PyPI", "npm"
LIMIT_S: Final = 600
MAX_SHOWN: Final = 10


class Package(NamedTuple):
    """A locked package."""

    ecosystem: str
    name: str
    version: str
    lock: str


class AuditError(Exception):
    """Packages were not looked up. `str()` gives the reason and a remedy."""


def main() -> int:
    """Print the affected packages, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--advisories",
        type=Path,
        metavar="DIR",
        help="directory of advisories in OSV's format, for use without a network",
    )
    parser.add_argument("--pip-audit", default="pip-audit", metavar="PROGRAM", help="path of pip-audit")
    options = parser.parse_args()
    packages = [*python_packages(ROOT / "requirements"), *console_packages(ROOT / "warmlog" / "ui")]
    findings: list[str] = []
    failures: list[AuditError] = []
    checks = [lambda: offline(packages, options.advisories)]
    if options.advisories is None:
        checks = [
            lambda: pip_audit(options.pip_audit, ROOT / "requirements"),
            lambda: npm_audit(ROOT / "warmlog" / "ui"),
        ]
    for check in checks:
        try:
            findings += check()
        except AuditError as error:
            failures.append(error)
    for line in (*findings, *(f"audit: {failure}" for failure in failures)):
        print(line)
    if not findings and not failures:
        print(f"{len({each[:3] for each in packages})} packages are locked, and none is known to be affected")
    return 2 if failures else min(len(findings), 1)


# -- locked packages ---------------------------------------------------------------------------------------------------


def python_packages(directory: Path) -> Iterator[Package]:
    """Yield the packages of all lock files."""
    for lock in sorted(directory.glob("*.lock")):
        for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock.read_text(), re.MULTILINE):
            yield Package(PYPI, canonicalize_name(name), version, lock.name)


def console_packages(directory: Path) -> Iterator[Package]:
    """Yield the packages of the console's page."""
    lock = directory / "package-lock.json"
    for path, package in json.loads(lock.read_text())["packages"].items():
        if path:
            yield Package(NPM, path.rpartition("node_modules/")[2], package["version"], lock.name)


# -- with a network ----------------------------------------------------------------------------------------------------


def pip_audit(program: str, directory: Path) -> list[str]:
    """Look up the packages of lock files with pip-audit. Raises AuditError."""
    locks = [word for lock in sorted(directory.glob("*.lock")) for word in ("-r", str(lock))]
    output = _run(
        [program, "--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json", *locks]
    )
    return from_pip_audit(output)


def from_pip_audit(output: str) -> list[str]:
    """Return the findings in pip-audit's JSON output. Raises AuditError if a package was not looked up."""
    try:
        found = json.loads(output)["dependencies"]
    except (ValueError, KeyError):
        raise AuditError(f"pip-audit got no answer, which needs a network: {_last_line(output)}") from None
    skipped = [each["name"] for each in found if "skip_reason" in each]
    if skipped:
        raise AuditError(
            f"PyPI gave no answer about {len(skipped)} of {len(found)} packages: {_listed(skipped)}; "
            "with a mirror that has no advisories, use ADVISORIES=DIR"
        )
    return [
        f"{each['name']} {each['version']}: {vulnerability['id']}, fixed in {', '.join(vulnerability['fix_versions'])}"
        for each in found
        for vulnerability in each["vulns"]
    ]


def npm_audit(directory: Path) -> list[str]:
    """Look up the packages of the console's page with npm. Raises AuditError."""
    return from_npm(_run(["npm", "audit", "--package-lock-only", "--json"], directory))


def from_npm(output: str) -> list[str]:
    """Return the findings in the output of `npm audit`. Raises AuditError."""
    try:
        found = json.loads(output)["vulnerabilities"]
    except (ValueError, KeyError):
        raise AuditError(f"npm got no answer, which needs a network: {_last_line(output)}") from None
    return [f"{name} {each['range']}: {each['severity']}, see `npm audit`" for name, each in found.items()]


def _run(command: list[str], directory: Path = ROOT) -> str:
    """Run a program, and return its output whatever its exit status. Raises AuditError."""
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except FileNotFoundError:
        raise AuditError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise AuditError(f"{command[0]} took more than {LIMIT_S} s") from None
    return done.stdout if done.stdout.strip() else done.stderr


def _last_line(output: str) -> str:
    """Return the message of npm's JSON, or the last line."""
    try:
        return str(json.loads(output)["message"])
    except (ValueError, KeyError, TypeError):
        return (output.strip().splitlines() or ["it printed nothing"])[-1][:300]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + (" and others" if len(names) > MAX_SHOWN else "")


# -- without -----------------------------------------------------------------------------------------------------------


def offline(packages: Iterable[Package], directory: Path) -> list[str]:
    """Compare packages with the advisories below a directory. Raises AuditError."""
    advisories: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    ecosystems, newest, count = set(), "", 0
    for advisory in read_advisories(directory):
        count += 1
        newest = max(newest, str(advisory.get("modified", ""))[:10])
        for affected in advisory.get("affected", ()):
            package = affected.get("package", {})
            ecosystems.add(package.get("ecosystem"))
            name = package.get("name", "")
            key = canonicalize_name(name) if package.get("ecosystem") == PYPI else name
            advisories[package.get("ecosystem"), key].append({**affected, "advisory": advisory})
    if not count:
        raise AuditError(f"{directory}: there are no advisories (*.yaml, *.json)")
    print(f"{count} advisories, the newest of {newest}")
    findings = {
        f"{package.lock}: {package.name} {package.version}: {_described(affected['advisory'], affected)}": None
        for package in packages
        for affected in advisories.get((package.ecosystem, package.name), ())
        if is_affected(package.version, affected)
    }
    missing = [package.name for package in packages if package.ecosystem not in ecosystems]
    if missing:
        print(f"not looked up, as there are no advisories for their ecosystem: {_listed(sorted(set(missing)))}")
    return list(findings)


def read_advisories(directory: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the advisories below a directory, except withdrawn ones."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(chain(directory.rglob("*.yaml"), directory.rglob("*.json"))):
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else yaml.load(text, loader)  # a safe loader
        if isinstance(found, dict) and "id" in found and "affected" in found and not found.get("withdrawn"):
            yield found


def is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Return whether an advisory applies to a version. Raises AuditError."""
    if version in map(str, affected.get("versions", ())):
        return True
    return any(
        _is_in(_version(version), each["events"])
        for each in affected.get("ranges", ())
        if each["type"] in {"ECOSYSTEM", "SEMVER"}
    )


def _is_in(version: Version, events: Iterable[Mapping[str, Any]]) -> bool:
    """Evaluate a range as specified by OSV's schema: the last event at or below the version decides."""
    result = False
    for event in sorted(events, key=lambda each: _version(next(iter(each.values())))):
        (kind, at) = next(iter(event.items()))
        if kind == "introduced" and version >= _version(at):
            result = True
        elif (kind == "fixed" and version >= _version(at)) or (kind == "last_affected" and version > _version(at)):
            result = False
    return result


def _version(text: Any) -> Version:
    try:
        return Version(str(text))
    except InvalidVersion:
        raise AuditError(f"cannot compare the version {text!r}") from None


def _described(advisory: Mapping[str, Any], affected: Mapping[str, Any]) -> str:
    fixed = [
        str(event["fixed"])
        for each in affected.get("ranges", ())
        if each["type"] != "GIT"
        for event in each["events"]
        if "fixed" in event
    ]
    names = ", ".join([advisory["id"], *advisory.get("aliases", ())])
    return f"{names}, " + (f"fixed in {', '.join(fixed)}" if fixed else "without a fixed version")


if __name__ == "__main__":
    sys.exit(main())
