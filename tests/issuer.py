"""An issuer of tokens on a loopback address: its key set at /jwks, and tokens for client credentials at /token."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

AUDIENCE = "warmlog"
CLIENT, SECRET = "a client", "s3:cret&"
LIFETIME_S = 300


class Issuer:
    """Signs tokens, and counts requests. `answer` replaces the key set by a status and a body."""

    def __init__(self) -> None:
        self.keys: dict[str, RSAKey | ECKey | OKPKey] = {"1": ECKey.generate_key("P-256", {"kid": "1"})}
        self.url = "https://issuer.example"
        self.lifetime_s = LIFETIME_S
        self.name = "alice"  # in tokens for client credentials
        self.reads = self.grants = 0
        self.scopes: list[str] = []
        self.answer: tuple[int, bytes] | None = None

    @property
    def jwks(self) -> bytes:
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys.values()]}).encode()

    def rotate(self) -> None:
        """Replace all keys by a new one."""
        name = str(max(map(int, self.keys)) + 1)
        self.keys = {name: ECKey.generate_key("P-256", {"kid": name})}

    def claims(self, sub: Any = "alice", **others: Any) -> dict[str, Any]:
        """Return the claims of a token; None leaves one out."""
        now = int(time())
        found = {"iss": "https://issuer.example", "aud": AUDIENCE, "sub": sub, "iat": now, "nbf": now,
                 "exp": now + self.lifetime_s, "scope": "kafka", **others}  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def token(self, sub: Any = "alice", **others: Any) -> str:
        """Return a token with these claims."""
        name, key = list(self.keys.items())[-1]
        return jwt.encode({"alg": "ES256", "kid": name}, self.claims(sub, **others), key, algorithms=["ES256"])

    def settings(self, **others: str) -> dict[str, str]:
        """Return the settings of a broker that accepts the tokens."""
        return {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{self.url}/jwks",
            "sasl.oauthbearer.expected.issuer": "https://issuer.example",
            "sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}",
            "warmlog.sasl.plain.without.tls": "true",
            **{name.replace("_", "."): value for name, value in others.items()},
        }


@contextmanager
def running_issuer(certificate: Path | None = None) -> Iterator[Issuer]:
    """Serve an issuer, over TLS with a PEM file of a key and its certificate."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            issuer.reads += 1
            self._reply(*(issuer.answer or (200, issuer.jwks)))

        def do_POST(self) -> None:
            issuer.grants += 1
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
            if given != f"{CLIENT}:{SECRET}" or form.get("grant_type") != ["client_credentials"]:
                self._reply(401, b'{"error":"invalid_client"}')
                return
            issuer.scopes += form.get("scope", [])
            self._reply(200, json.dumps({
                "access_token": issuer.token(issuer.name), "token_type": "Bearer", "expires_in": issuer.lifetime_s,
            }).encode())  # fmt: skip

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *arguments: object) -> None:
            pass  # a client that does not accept the certificate

    server = Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    scheme = "http" if certificate is None else "https"
    issuer.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
