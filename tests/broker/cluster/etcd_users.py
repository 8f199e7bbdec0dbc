"""An etcd that demands users: root, and one who may use the keys of clusters."""

from collections.abc import Sequence
from pathlib import Path

from tests.broker.cluster.etcd_process import EtcdProcess, etcdctl

USER = "broker"
PASSWORD = "correct-horse"
QUICK_HASHES = ("--bcrypt-cost", "4")  # an option of etcd
_ROOT = "root:of-all-evil"


class Users:
    """Administers the users of an etcd. `options`: of etcdctl, for TLS."""

    def __init__(self, member: EtcdProcess, options: Sequence[str | Path] = ()) -> None:
        self._options = ("--endpoints", member.url, *options)
        self._is_enabled = False

    def run(self, *arguments: str, given: str = "") -> None:
        """Run etcdctl as root."""
        etcdctl(*self._options, *(("--user", _ROOT) if self._is_enabled else ()), *arguments, given=given)

    def add(self, permission: str = "readwrite") -> None:
        """Add the users."""
        self.run("user", "add", _ROOT)
        self.run("role", "add", "root")
        self.run("user", "grant-role", "root", "root")
        self.run("user", "add", f"{USER}:{PASSWORD}")
        self.run("role", "add", "warmlog")
        self.grant(permission)
        self.run("user", "grant-role", USER, "warmlog")

    def grant(self, permission: str) -> None:
        """Let the user read, write or both."""
        self.run("role", "grant-permission", "--prefix=true", "warmlog", permission, "/warmlog/")

    def enable(self) -> None:
        """Demand users from now on."""
        self.run("auth", "enable")
        self._is_enabled = True

    def disable(self) -> None:
        """Demand no users any more."""
        self.run("auth", "disable")
        self._is_enabled = False

    def change_password(self, password: str) -> None:
        """Give the user another password, which makes its tokens invalid."""
        self.run("user", "passwd", USER, "--interactive=false", given=password)
