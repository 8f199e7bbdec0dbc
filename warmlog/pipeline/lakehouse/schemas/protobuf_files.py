"""Descriptors of Protobuf schemas: compiled from .proto text by protoc, part of grpcio-tools, or given as they are.

Registries store text; Confluent's serializers register descriptors in base64. Only the job uses this module: tasks
receive descriptors.
"""

import re
import subprocess
import sys
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from warmlog.pipeline.lakehouse.schemas.types import SchemaError

ROOT_NAME = "warmlog_schema.proto"
LIMIT_S = 60
_OF_FILE = re.compile(r"\S+\.proto:")  # format of an error message of protoc


def descriptors_of(text: str, references: Mapping[str, str]) -> str:
    """Return the descriptors of a registry's schema in base64. `references`: schemas by the names in its imports.

    Raises SchemaError.
    """
    if _file_descriptor(text) is None:
        return compiled({**references, ROOT_NAME: text}, ROOT_NAME)
    from google.protobuf import descriptor_pb2

    files: dict[str, Any] = {}
    for name, part in (*references.items(), (ROOT_NAME, text)):
        file = _file_descriptor(part)
        if file is None:
            raise SchemaError(f"{name} is text, and the schema that imports it is not")
        file.name = name
        _add_known(file, files)
        files[name] = file
    return b64encode(descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString()).decode()


def descriptors_in(path: Path) -> str:
    """Return the descriptors of a .proto file, which may import files in its directory, or of a descriptor set file.

    Raises SchemaError, OSError.
    """
    data = path.read_bytes()
    if path.suffix == ".proto":
        return compiled({}, path.name, path.parent)
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        if not descriptor_pb2.FileDescriptorSet.FromString(data).file:
            raise SchemaError("neither a .proto file nor a set of descriptors")
    except DecodeError as error:
        raise SchemaError("neither a .proto file nor a set of descriptors") from error
    return b64encode(data).decode()


def messages_of(descriptors: str) -> list[str]:
    """Return the full names of the top-level messages of the last file."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorSet.FromString(b64decode(descriptors)).file[-1]
    return [f"{file.package}.{each.name}".lstrip(".") for each in file.message_type]


def compiled(texts: Mapping[str, str], root: str, directory: Path | None = None) -> str:
    """Compile a file and its imports. `texts`: files by name, in addition to those of a directory."""
    with TemporaryDirectory() as temporary:
        for name, text in texts.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise SchemaError(f"{name} is not the name of a file to import")
            path = Path(temporary, "files", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        source = directory if directory is not None else Path(temporary, "files")
        result = Path(temporary, "descriptors")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source.absolute()}", "--include_imports"]
        done = subprocess.run(  # noqa: S603 - the library's own compiler
            [*command, f"--descriptor_set_out={result}", root],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode or not result.exists():
            lines = [line for line in done.stderr.splitlines() if _OF_FILE.match(line) and " warning: " not in line]
            reason = (lines or ["protoc failed"])[0].removeprefix(f"{source.absolute()}/")
            raise SchemaError(f"not a Protobuf schema: {reason}")
        return b64encode(result.read_bytes()).decode()


def _file_descriptor(text: str) -> Any:
    """Return the descriptor of a file in base64; None for text."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (Base64Error, ValueError, DecodeError):
        return None


def _add_known(file: Any, files: dict[str, Any]) -> None:
    """Add the descriptors of imports that are part of the library."""
    from google.protobuf import (  # noqa: F401 - importing them registers their descriptors
        any_pb2,
        descriptor_pb2,
        descriptor_pool,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    for name in file.dependency:
        if name not in files:
            try:
                known = descriptor_pool.Default().FindFileByName(name)
            except KeyError:
                raise SchemaError(f"{file.name} imports {name}, which the registry has no reference to") from None
            copy = descriptor_pb2.FileDescriptorProto()
            known.CopyToProto(copy)
            _add_known(copy, files)
            files[name] = copy
