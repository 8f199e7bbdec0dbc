"""Machines made of namespaces of this host: with their own processes, network and /mnt, and the rest shared.

    machine 1   eth0 10.78.0.1 --+
    machine 2   eth0 10.78.0.2 --+-- bridge 10.78.0.254, in the network namespace of this process

This process has its own network namespace (`unshare --net`), so that the host's network is not changed.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

NETWORK = "10.78.0."
BRIDGE = "machines"
# The first process of a machine: it reaps orphaned processes, so that they do not remain as zombies.
_INIT = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
print("up", flush=True)
while signal.sigwait({signal.SIGCHLD}):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


class Machine(NamedTuple):
    """A machine: its number and the process id of its first process."""

    number: int
    pid: int

    @property
    def address(self) -> str:
        """Its address, which is also its name."""
        return f"{NETWORK}{self.number}"

    @property
    def root(self) -> Path:
        """The root of its file system, as a path on this host."""
        return Path(f"/proc/{self.pid}/root")

    def enter(self, *command: str) -> tuple[str, ...]:
        """Return the command that runs this one on the machine."""
        return ("nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--wd=/", "--", *command)


def start(count: int, directory: Path) -> list[Machine]:
    """Start machines 1 to `count`, the /mnt of machine N being DIRECTORY/N. They end when this thread ends.

    Raises CalledProcessError.
    """
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "address", "add", f"{NETWORK}254/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    return [_start(number, directory / str(number)) for number in range(1, count + 1)]


def _start(number: int, directory: Path) -> Machine:
    command = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child")
    process = subprocess.Popen(
        (*command, "--mount-proc", sys.executable, "-c", _INIT), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if process.stdout.readline() != "up\n":
        raise subprocess.CalledProcessError(process.wait(), command)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    machine = Machine(number, int(children[0]))
    directory.mkdir(parents=True, exist_ok=True)
    _run("ip", "link", "add", f"machine{number}", "type", "veth", "peer", "name", "eth0", "netns", children[0])
    _run("ip", "link", "set", f"machine{number}", "master", BRIDGE, "up")
    _run(*machine.enter("mount", "--bind", str(directory), "/mnt"))
    _run(*machine.enter("ip", "link", "set", "lo", "up"))
    _run(*machine.enter("ip", "address", "add", f"{machine.address}/24", "dev", "eth0"))
    _run(*machine.enter("ip", "link", "set", "eth0", "up"))
    return machine


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
