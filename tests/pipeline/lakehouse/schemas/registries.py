"""A schema registry for tests, with what Confluent's clients need of it, and values as their serializers write them."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

SUBJECT = "orders-value"


class RegistryServer(ThreadingHTTPServer):
    """Serves schemas in memory. `login`: `user:password` that each request needs. `requests`: paths so far."""

    daemon_threads = True

    def __init__(self, login: str | None, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.login = login
        self.scheme = "http" if tls is None else "https"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def add(self, subject: str, schema: dict[str, Any]) -> int:
        """Register a schema, or return the id that it has."""
        kept = {"schemaType": "AVRO", "references": [], **schema}
        if kept not in self.schemas:
            self.schemas.append(kept)
        schema_id = self.schemas.index(kept) + 1
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        parts = path.partition("?")[0].strip("/").split("/")
        if method == "POST" and parts[0] == "subjects" and body is not None:
            kept = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
            return 200, self._registered(parts[1], self.add(parts[1], kept))
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) <= len(self.schemas):
            return 200, self.schemas[int(parts[2]) - 1]
        if parts[0] == "subjects" and parts[2:3] == ["versions"] and len(parts) == 4:
            versions = self.subjects.get(parts[1], [])
            number = len(versions) if parts[3] == "latest" else int(parts[3])
            if 0 < number <= len(versions):
                return 200, self._registered(parts[1], versions[number - 1])
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _registered(self, subject: str, schema_id: int) -> dict[str, Any]:
        version = self.subjects[subject].index(schema_id) + 1
        return {**self.schemas[schema_id - 1], "subject": subject, "version": version, "id": schema_id}


class _Handler(BaseHTTPRequestHandler):
    server: RegistryServer

    def _answer(self) -> None:
        self.server.requests.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        expected = self.server.login
        given = self.headers.get("Authorization", "")
        if expected is not None and given != "Basic " + base64.b64encode(expected.encode()).decode():
            status, form = 401, {"error_code": 401, "message": "Unauthorized"}
        else:
            status, form = self.server.answer(self.command, self.path, json.loads(body) if body else None)
        data = json.dumps(form).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = _answer  # noqa: N815 - the names that http.server calls
    do_POST = _answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def serving(login: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    """Serve a registry on a port of its own."""
    with RegistryServer(login, tls) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def avro(url: str, schema: Mapping[str, Any], values: Sequence[Any], login: str | None = None) -> list[bytes]:
    """Values as Confluent's serializer writes them, which registers their schema."""
    given = {"url": url} if login is None else {"url": url, "basic.auth.user.info": login}
    serializer = AvroSerializer(SchemaRegistryClient(given), json.dumps(schema))
    return _serialized(serializer, values)


def json_values(url: str, schema: Mapping[str, Any], values: Sequence[Any]) -> list[bytes]:
    serializer = JSONSerializer(json.dumps(schema), SchemaRegistryClient({"url": url}))
    return _serialized(serializer, values)


def with_reference(url: str, schema: Mapping[str, Any], name: str, other: Mapping[str, Any], kind: str) -> int:
    """Register a schema that refers to another one; return its id."""
    client = SchemaRegistryClient({"url": url})
    client.register_schema("other", Schema(json.dumps(other), kind))
    return client.register_schema(SUBJECT, Schema(json.dumps(schema), kind, [SchemaReference(name, "other", 1)]))


def _serialized(serializer: Any, values: Sequence[Any]) -> list[bytes]:
    context = SerializationContext("orders", MessageField.VALUE)
    return [serializer(value, context) for value in values]
