"""A PostgreSQL server in a directory of its own, which is killed and started again."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from interop.kafka_node import MissingToolError
from interop.ports import free_ports

USER = "postgres"  # root may not run the server; Debian's package has created this user
PASSWORD = "a secret"
DEBIAN = Path("/usr/lib/postgresql")


def program(name: str) -> str:
    """Return the path of one of the server's programs, which Debian keeps out of PATH. Raises MissingToolError."""
    listed = sorted(DEBIAN.glob(f"*/bin/{name}"))
    path = str(listed[-1]) if listed else shutil.which(name)
    if path is None:
        raise MissingToolError(f"not installed: {name} (Debian: postgresql)")
    return path


class PostgresServer:
    """A server with one database, `catalog`, which keeps its port and its data over restarts. A context manager.

    Its user logs in with `PASSWORD`. Root runs it as `USER`.
    """

    def __init__(self) -> None:
        self._server = program("postgres")
        initdb = program("initdb")
        self._user = USER if os.geteuid() == 0 else None
        self._directory = Path(tempfile.mkdtemp(prefix="warmlog-postgresql-"))
        (self.port,) = free_ports(1)
        password = self._directory / "password"
        password.write_text(f"{PASSWORD}\n")
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            for path in (self._directory, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self._data = self._directory / "data"
        login = ["--username", USER, "--auth", "scram-sha-256", f"--pwfile={password}"]
        self._run([initdb, "--pgdata", str(self._data), *login, "--no-sync", "--encoding", "UTF8", "--locale", "C"])
        single = [self._server, "--single", "-D", str(self._data), "postgres"]
        self._run(single, given="CREATE DATABASE catalog\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the database for SQLAlchemy, without the password."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/catalog"

    def _run(self, command: list[str], given: str = "") -> None:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, user=self._user, cwd=self._directory
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stdout[-1000:]}{done.stderr[-1000:]}")

    def start(self) -> None:
        """Start the server, and wait until it answers. Raises RuntimeError with its log if it does not."""
        log = self._directory / "log"
        address = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self._directory}"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._server, "-D", str(self._data), "-p", str(self.port), *address],
                stdout=output,
                stderr=output,
                user=self._user,
                cwd=self._directory,
                start_new_session=True,
            )
        ready = [program("pg_isready"), "--quiet", "--host", "127.0.0.1", "--port", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None:
                raise RuntimeError(f"postgres ended: {log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Kill the server, and the processes of its connections."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory)
