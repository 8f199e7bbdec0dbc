"""Machines in the form that ducktape's tests use: accounts that run commands and hold files."""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ducktape.cluster.linux_remoteaccount import LinuxRemoteAccount
from ducktape.cluster.remoteaccount import RemoteAccountSSHConfig, RemoteCommandError, SSHOutputIter
from interop.ducktape import installation
from interop.ducktape.machines import Machine


class Files:
    """The files of a machine, with the methods of paramiko's SFTPClient that ducktape calls."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, path: str, mode: str = "r") -> IO[Any]:
        """Open a file."""
        return self._path(path).open(mode)

    def stat(self, path: str) -> os.stat_result:
        """Return the attributes of a file, following symbolic links."""
        return self._path(path).stat()

    def lstat(self, path: str) -> os.stat_result:
        """Return the attributes of a file or a symbolic link."""
        return self._path(path).lstat()

    def mkdir(self, path: str, mode: int) -> None:
        """Make a directory."""
        self._path(path).mkdir(mode)

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return os.listdir(self._path(path))

    def get(self, source: str, destination: str) -> None:
        """Copy a file from the machine."""
        shutil.copyfile(self._path(source), destination)

    def put(self, source: str, destination: str) -> None:
        """Copy a file to the machine."""
        shutil.copyfile(source, self._path(destination))

    def _path(self, path: str) -> Path:
        return self._root / path.lstrip("/")


class MachineAccount(LinuxRemoteAccount):
    """An account on a machine. It enters the namespaces instead of using SSH as ducktape does."""

    def __init__(self, machine: Machine) -> None:
        config = RemoteAccountSSHConfig(machine.address, hostname=machine.address)
        super().__init__(config, externally_routable_ip=machine.address)
        self._machine = machine

    @property
    def sftp_client(self) -> Files:
        """The files."""
        return Files(self._machine.root)

    def ssh(self, cmd: str, allow_fail: bool = False) -> int:
        """Run a command to completion, and return its exit status. Raises RemoteCommandError."""
        self._log(logging.DEBUG, f"running: {cmd}")
        with tempfile.TemporaryFile() as errors, self._start(cmd, errors) as process:
            assert process.stdout is not None
            process.stdout.read()
            return self._end(process, cmd, errors, allow_fail)

    def ssh_output(
        self, cmd: str, allow_fail: bool = False, combine_stderr: bool = True, timeout_sec: float | None = None
    ) -> bytes:
        """Run a command to completion, and return its output. Raises RemoteCommandError."""
        del timeout_sec
        self._log(logging.DEBUG, f"running: {cmd}")
        with (
            tempfile.TemporaryFile() as errors,
            self._start(cmd, subprocess.STDOUT if combine_stderr else errors) as process,
        ):
            assert process.stdout is not None
            output: bytes = process.stdout.read()
            self._end(process, cmd, errors, allow_fail)
        return output

    def ssh_capture(
        self,
        cmd: str,
        allow_fail: bool = False,
        callback: Callable[[str], Any] | None = None,
        combine_stderr: bool = True,
        timeout_sec: float | None = None,
    ) -> SSHOutputIter:
        """Start a command, and return an iterator over its lines, which raises RemoteCommandError at the end."""
        del timeout_sec
        self._log(logging.DEBUG, f"running: {cmd}")
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `lines`
        process = self._start(cmd, subprocess.STDOUT if combine_stderr else errors)

        def lines() -> Iterator[Any]:
            with errors, process:
                assert process.stdout is not None
                for line in process.stdout:
                    text = line.decode(errors="replace")
                    yield callback(text) if callback else text
                self._end(process, cmd, errors, allow_fail)

        return SSHOutputIter(lines)

    def _start(self, command: str, errors: IO[bytes] | int) -> subprocess.Popen[bytes]:
        words = self._machine.enter("bash", "-c", command)
        environment = installation.environment(Path(os.environ[installation.DIRECTORY]))
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment)

    def _end(self, process: subprocess.Popen[bytes], command: str, errors: IO[bytes], allow_fail: bool) -> int:
        status = process.wait()
        if status != 0:
            errors.seek(0)
            said = errors.read()
            if not allow_fail:
                raise RemoteCommandError(self, command, status, said)
            self._log(logging.DEBUG, f"exit status {status}: {said!r}")
        return status
