"""Kubernetes' objects: validated by its strict schemas, with variables filled in as it does that."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema

VERSIONS = ("1.25.0", "1.37.0")

Object = dict[str, Any]


def errors(found: Object, schemas: Path, version: str) -> list[str]:
    """Return what is wrong with an object in a version of Kubernetes."""
    known = json.loads((schemas / f"kubernetes-{version}.json").read_text())
    group, _, api = found["apiVersion"].rpartition("/")
    key = "-".join(filter(None, (found["kind"].lower(), group.split(".")[0], api)))
    schema = {**known["kinds"][key], "$defs": known["$defs"]}
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(found)]


def expanded(text: str, **variables: str) -> str:
    """Replace $(NAME) in a command or a variable."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)
