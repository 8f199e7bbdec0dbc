"""A container engine for the tests of the image: podman with storage of its own and a network of its own.

No image registry is needed: debootstrap makes the base image that the Dockerfile names, from the Debian mirror that apt
is configured with. It gets this machine's certificates and the package index that pip is configured with.

Containers run with `--network=host`, where "host" is a network namespace that only has a loopback: the fixed ports of
the image and of compose.yaml are free in it, whatever listens on the machine.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.deploy.files import ROOT
from tests.requires import lacks

PACKAGES = {"podman": "podman", "runc": "runc", "debootstrap": "debootstrap", "ip": "iproute2", "nsenter": "util-linux"}
# No seccomp filter, and limits no higher than a container in a container may have.
RUN = ("--network=host", "--security-opt=seccomp=unconfined", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
DEBIAN_MIRROR = "http://deb.debian.org/debian"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
#: How pip is configured on this machine, where that is by variables and means the same in a container.
PIP_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
COMMAND_LIMIT_S, BUILD_LIMIT_S = 120, 900


class PodmanError(AssertionError):
    """A command failed; the message holds it and what it printed."""


class Podman:
    """The engine: its images and containers live in `directory`, and its containers in the namespace `network`."""

    def __init__(self, directory: Path, network: str) -> None:
        self._command = [
            "podman", f"--root={directory / 'root'}", f"--runroot={directory / 'run'}", f"--tmpdir={directory / 'tmp'}",
            "--runtime=runc",
        ]  # fmt: skip
        self._enter = ["nsenter", f"--net=/run/netns/{network}"]
        # Health is asked for by the tests, not by timers of a systemd that may not run.
        self._environment = {**os.environ, "DISABLE_HC_SYSTEMD": "true"}

    def __call__(self, *arguments: str) -> str:
        """Run a command in the containers' network, and return its output. Raises PodmanError."""
        return self._run([*self._enter, *self._command, *arguments], COMMAND_LIMIT_S)

    def build(self, tag: str, *options: str) -> None:
        """Build an image, in the machine's network. Raises PodmanError."""
        command = ["build", "--network=host", "--isolation=chroot", "--format=docker", f"--tag={tag}", *options]
        self._run([*self._command, *command], BUILD_LIMIT_S)

    def import_root(self, root: Path, name: str, environment: Mapping[str, str]) -> None:
        """Make an image of one layer of a directory. Raises PodmanError."""
        changes = [f"--change=ENV {variable}={value}" for variable, value in environment.items()]
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            self._run([*self._command, "import", "--quiet", *changes, "-", name], BUILD_LIMIT_S, tar.stdout)
        assert tar.returncode == 0

    def python(self, code: str, *arguments: str) -> str:
        """Run a program of the tests' own Python in the containers' network, and return its output."""
        return self._run([*self._enter, sys.executable, "-c", code, *arguments], COMMAND_LIMIT_S)

    def is_healthy(self, container: str) -> bool:
        """Run a container's health check."""
        try:
            self("healthcheck", "run", container)
        except PodmanError:
            return False
        return True

    def wait_for_line(self, container: str, start: str, *, times: int = 1) -> None:
        """Follow what a container prints until a line has come so many times. Raises PodmanError if it ends before."""
        command = [*self._enter, *self._command, "logs", "--follow", container]
        seen = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as logs:
            assert logs.stdout is not None
            try:
                for line in logs.stdout:
                    seen.append(line)
                    times -= line.startswith(start)
                    if not times:
                        return
            finally:
                logs.kill()
        raise PodmanError(f"{container} ended: {''.join(seen)}")

    def remove_all(self) -> None:
        """Kill and delete all containers, volumes and images."""
        for command in (("rm", "--all", "--force", "--time=0"), ("volume", "rm", "--all"), ("rmi", "--all", "--force")):
            with suppress(PodmanError):
                self(*command)

    def _run(self, command: list[str], limit_s: int, source: IO[bytes] | None = None) -> str:
        done = subprocess.run(
            command, env=self._environment, cwd=ROOT, stdin=source or subprocess.DEVNULL, capture_output=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
        output, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.returncode:
            raise PodmanError(f"{' '.join(command)}: status {done.returncode}\n{output}\n{errors}")
        return output


@contextmanager
def podman_at(directory: Path, network: str) -> Iterator[Podman]:
    """Make an engine; remove all it made afterwards. Skips, or fails in CI, where that cannot be had."""
    missing = {package for tool, package in PACKAGES.items() if shutil.which(tool) is None}
    if missing:
        lacks(f"missing for the test of the image (apt): {' '.join(sorted(missing))}")
    if os.geteuid():
        lacks("debootstrap and podman with --network=host need root")
    try:
        subprocess.run(["ip", "netns", "add", network], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        lacks(f"the kernel does not let this user make a network namespace: {error.stderr}")
    subprocess.run(["ip", "-n", network, "link", "set", "lo", "up"], check=True)
    engine = Podman(directory, network)
    try:
        yield engine
    finally:
        engine.remove_all()
        subprocess.run(["umount", directory / "root" / "overlay"], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run(["ip", "netns", "delete", network], check=True)


def base_image(dockerfile: str) -> tuple[str, str]:
    """Return the full name of the one base image of a Dockerfile, and the Debian release in it."""
    (name,) = set(re.findall(r"^FROM (python:\S+)", dockerfile, re.MULTILINE))
    return f"docker.io/library/{name}", name.rpartition("-")[2]


def make_base(engine: Podman, directory: Path, name: str, suite: str) -> None:
    """Make what the Dockerfile takes for granted in its base: Debian with `python`, venv and the headers.

    Skips, or fails in CI, where debootstrap has no mirror or no rights.
    """
    root = directory / "base"
    settings = root / "etc/dpkg/dpkg.cfg.d"
    settings.mkdir(parents=True)
    (settings / "docker-apt-speedup").write_text("force-unsafe-io\n")  # no fsync of each file
    packages = "ca-certificates,python3,python3-venv,libpython3-dev"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", suite, str(root), debian_mirror()]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        log = root / "debootstrap" / "debootstrap.log"
        lacks(f"debootstrap cannot make the base image: {done.stdout}\n{log.read_text() if log.exists() else ''}")
    for directory_of_downloads in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(root / directory_of_downloads)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    environment = {variable: os.environ[variable] for variable in PIP_VARIABLES if variable in os.environ}
    if CERTIFICATES.exists():
        shutil.copyfile(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
        environment["PIP_CERT"] = str(CERTIFICATES)
    with suppress(FileNotFoundError):
        shutil.copyfile("/etc/pip.conf", root / "etc/pip.conf")
    engine.import_root(root, name, environment)
    shutil.rmtree(root)


def debian_mirror() -> str:
    """Return the mirror that apt uses, or Debian's own."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    mirrors = [uri.rstrip("/") for uri in done.stdout.split() if uri.rstrip("/").endswith("/debian")]
    return mirrors[0] if mirrors else DEBIAN_MIRROR
