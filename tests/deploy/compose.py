"""Services of Compose files: merged with those that they extend, and as options of `podman run`."""

import json
import os
import re
from typing import Any

from tests.deploy.files import DEPLOY, load

# Not options here: containers share a network with all their ports, limits on descriptors may not be raised, and podman
# takes no list of words as health check (`health_check` below).
ELSEWHERE = {"image", "build", "command", "ports", "ulimits", "depends_on", "healthcheck", "network_mode"}


def services_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the services of a file in deploy/, merged with the services that they extend as Compose does it."""
    services: dict[str, dict[str, Any]] = load(DEPLOY / name)["services"]
    return {service: _extended(described) for service, described in services.items()}


def _extended(service: dict[str, Any]) -> dict[str, Any]:
    if "extends" not in service:
        return service
    base = services_of(service["extends"]["file"])[service["extends"]["service"]]
    own = {key: value for key, value in service.items() if key != "extends"}
    merged = {**base, **own}
    if "environment" in own:
        merged["environment"] = {**base["environment"], **own["environment"]}
    if "volumes" in own:
        by_target = {volume.split(":")[1]: volume for volume in (*base["volumes"], *own["volumes"])}
        merged["volumes"] = list(by_target.values())
    return merged


def interpolate(text: str, variables: dict[str, str]) -> str:
    """Put in `${NAME:-default}` as Compose does."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1]) or found[2], text)


def run_options(service: dict[str, Any], hosts: list[str]) -> list[str]:
    """Translate a service, for a network in which all hosts are the loopback. Raises KeyError on an unknown key."""
    options = [f"--add-host={host}:127.0.0.1" for host in hosts]
    for key, value in service.items():
        if key not in ELSEWHERE:
            options += _OPTIONS[key](value)
    return options


def health_check(service: dict[str, Any]) -> list[str]:
    """Return the command that Compose runs in the container to learn whether it is healthy."""
    kind, *command = service["healthcheck"]["test"]
    assert kind == "CMD"
    return command


def _environment(variables: dict[str, Any]) -> list[str]:
    return [f"--env={name}={interpolate(str(value), dict(os.environ))}" for name, value in variables.items()]


def _volumes(volumes: list[str]) -> list[str]:
    options = []
    for volume in volumes:
        source, rest = volume.split(":", 1)
        options.append(f"--volume={DEPLOY / source if source.startswith('.') else source}:{rest}")
    return options


def _limits(deploy: dict[str, Any]) -> list[str]:
    limits = deploy["resources"]["limits"]
    return [f"--cpus={limits['cpus']}", f"--memory={limits['memory']}"]


def _security(options: list[str]) -> list[str]:
    return [f"--security-opt={option.removesuffix(':true')}" for option in options]


def _logging(logging: dict[str, Any]) -> list[str]:
    return [f"--log-driver={logging['driver']}", f"--log-opt=max-size={logging['options']['max-size']}"]


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


_OPTIONS: dict[str, Any] = {
    "init": lambda _: ["--init=false"],  # podman's is another package
    "entrypoint": lambda words: [f"--entrypoint={json.dumps(words)}"],
    "extra_hosts": lambda hosts: [f"--add-host={interpolate(host, {})}" for host in hosts],
    "hostname": lambda name: [f"--hostname={name}"],
    "restart": lambda policy: [f"--restart={policy}"],
    "stop_grace_period": lambda period: [f"--stop-timeout={_seconds(period)}"],
    "environment": _environment,
    "volumes": _volumes,
    "deploy": _limits,
    "read_only": lambda _: ["--read-only", "--read-only-tmpfs=false"],
    "tmpfs": lambda paths: [f"--tmpfs={path}" for path in paths],
    "cap_drop": lambda names: [f"--cap-drop={name}" for name in names],
    "security_opt": _security,
    "logging": _logging,
}
