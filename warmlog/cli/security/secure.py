"""`warmlog serve --secure`: certificates, an administrator and ACLs, created at the first start.

    DATA-secrets/        beside the data directory, in which Kafka allows no other directories; or --secrets-dir
        ca.pem, ca-key.pem, broker.pem    see `certificates`
        admin.password                    password of the user admin, who has all permissions
        broker.password                   password of the user as which brokers of a cluster log in to each other
        admin.properties                  configures Kafka's clients and tools to log in as admin; written last
        audit.jsonl                       the audit log: logins, refused requests and changes

Each start creates missing files and does not change existing ones, so the next start completes an interrupted one.

The brokers of a cluster on etcd share their secrets: `warmlog cluster secrets` creates them, and each broker gets a
copy, and its own certificate broker-ID.pem, unless there is a broker.pem for all. A broker with a new data directory
adds the users to the cluster, but does not change existing users.
"""

import logging
import re
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from warmlog.broker.cluster.local.users import UserExistsError, create_user, create_user_of_nodes
from warmlog.broker.log.directory.belonging import METADATA_FILE
from warmlog.broker.log.errors import LogError
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.security.authorizer import STANDARD_AUTHORIZER
from warmlog.broker.security.scram import ScramCredential
from warmlog.broker.settings.listeners import DEFAULT_KAFKA, DEFAULT_NATIVE, parse_address, parse_listeners
from warmlog.broker.settings.settings import FIELDS
from warmlog.broker.settings.types import SettingError
from warmlog.cli.connection.login import read_password
from warmlog.cli.failure import CannotStart, Failure
from warmlog.cli.security.certificates import is_host, is_issued, lacking, make, make_authority, own_hosts, write
from warmlog.protocol.scram import DEFAULT_ITERATIONS, MECHANISMS, SALT_BYTES, Mechanism

if TYPE_CHECKING:
    from warmlog.broker.settings.settings import Settings

ADMIN: Final = "admin"
BROKER: Final = "broker"  # the user as which the nodes of a cluster log in to each other
MECHANISM: Final = "SCRAM-SHA-512"
OF_HTTP: Final = ("warmlog.http.security.protocol=SSL", "warmlog.http.authentication=basic")
PASSWORD_BYTES: Final = 24
logger = logging.getLogger(__name__)

SECRETS: Final = frozenset({"admin.password", "admin.properties", "broker.password", "broker.pem", "ca-key.pem"})
OF_BROKER: Final = re.compile(r"broker-\d+\.pem")
WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # no client connects to these


class Secured(NamedTuple):
    """The result of `secure`.

    `assignments`: settings as `KEY=VALUE`, applied before those of the command line. `properties`: the file for
    clients. `is_new`: whether this start created that file. `native`: the address for commands, if not the default.
    """

    assignments: tuple[str, ...]
    properties: Path
    is_new: bool
    native: str | None


def secure(
    settings: "Settings",
    *,
    kafka: str | None,
    native: str | None,
    http: str,
    hosts: Sequence[str] = (),
    directory: Path | None = None,
    has_nodes: bool = False,
    kept: Collection[str] = (),
) -> Secured:
    """Prepare a broker that has not started yet. Raises CannotStart, Failure.

    `hosts`: further names in its certificate. `directory`: directory of the secrets, by default beside the data
    directory. `has_nodes`: run as a cluster of `--nodes`. `kept`: settings of the command line, which override those of
    --secure.
    """
    if settings.listeners:
        raise CannotStart(
            "--secure: cannot be combined with the setting listeners; set listeners, users and ACLs yourself"
        )
    is_member = bool(settings.warmlog_cluster_etcd)
    data = settings.data_paths[0].absolute()
    directory = data.with_name(f"{data.name}-secrets") if directory is None else directory.absolute()
    _check_apart(directory, settings)
    for host in hosts:
        if not is_host(host):
            raise CannotStart(f"--certificate-host: {host!r} is neither a host name nor an address")
    if is_member:
        _check_shared(directory)
    given = {*_hosts(settings, kafka or DEFAULT_KAFKA, native or DEFAULT_NATIVE, http), *hosts}
    is_of_cluster = is_member or has_nodes
    is_own = not {"ssl.keystore.location", "ssl.truststore.location"} & set(kept)
    broker_file = _certified(
        directory,
        settings.node_id if is_member else None,
        sorted(given),
        must_be_issued=is_of_cluster and is_own,
    )
    properties = directory / f"{ADMIN}.properties"
    is_new = not properties.exists()
    users = Users(settings, data, directory, is_member=is_member, has_nodes=has_nodes)
    if is_new or (is_member and not (data / METADATA_FILE).exists()):
        _make_users(users, properties)
    else:
        _warn_of_exposed(directory)
        _warn_of_changes(directory, properties, is_copy=is_member)
        if has_nodes:
            users.make(BROKER)  # its password may have been changed
    supers = (ADMIN, BROKER) if is_of_cluster else (ADMIN,)
    assignments = [
        "listener.security.protocol.map=kafka:SASL_SSL,native:SASL_SSL",
        f"ssl.keystore.location={broker_file}",
        f"authorizer.class.name={STANDARD_AUTHORIZER}",
        f"super.users={';'.join(f'User:{each}' for each in supers)}",
        "allow.everyone.if.no.acl.found=false",
        f"warmlog.audit.file={(data if is_member else directory) / 'audit.jsonl'}",
        *OF_HTTP,
    ]
    if is_of_cluster:
        assignments += [
            f"ssl.truststore.location={directory / 'ca.pem'}",
            f"warmlog.inter.broker.user={BROKER}",
            f"warmlog.inter.broker.password.file={directory / f'{BROKER}.password'}",
        ]
    return Secured(tuple(assignments), properties, is_new, native)


def _certified(directory: Path, member: int | None, hosts: Sequence[str], *, must_be_issued: bool) -> Path:
    """Return the file of the broker's certificate, and create it if it is missing; warn if it is unsuitable.

    `member`: the id of a broker in a cluster on etcd. `must_be_issued`: require that ca.pem, which the other brokers
    trust, issued it. Raises CannotStart, Failure.
    """
    file = directory / "broker.pem"
    if member is not None and not file.exists():
        file = directory / f"broker-{member}.pem"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not file.exists():
            if member is not None and not (directory / "ca-key.pem").exists():
                raise CannotStart(
                    f"--secure: {directory / 'ca-key.pem'} is needed to make {file.name}: copy it from where the"
                    " secrets of the cluster were made, and remove it afterwards"
                )
            make(directory, hosts=sorted({*own_hosts(), *hosts}), broker=file.stem)
        if must_be_issued and not is_issued(file, directory / "ca.pem"):
            raise CannotStart(
                f"--secure: {file} was not issued by {directory / 'ca.pem'}, or one of them is damaged: brokers of this"
                f" cluster would not trust each other; copy ca.pem and ca-key.pem from where the secrets were made, and"
                f" remove {file} to replace it"
            )
        if (problem := lacking(file, directory / "ca.pem", hosts)) is not None:
            logger.warning(
                "%s: clients will refuse this broker; restore it, or remove %s and start again to replace it",
                problem,
                file,
            )
    except OSError as error:
        raise Failure(f"{error.filename or directory}: {error.strerror}") from None
    return file


def make_shared(directory: Path, hosts: Sequence[str]) -> bool:
    """Create the missing secrets that brokers of a cluster share; return whether any were missing.

    `hosts`: the names in one certificate for all brokers; without them, each broker creates its own. Raises Failure.
    """
    directory = directory.absolute()
    properties = directory / f"{ADMIN}.properties"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = set(directory.iterdir())
        make_authority(directory)
        if hosts and not (directory / "broker.pem").exists():
            make(directory, hosts=hosts)
        for user in (BROKER, ADMIN):
            file = directory / f"{user}.password"
            if not file.exists():
                write(file, _new_password(), secret=True)
        if not properties.exists():
            write(properties, _properties(read_password(file), directory / "ca.pem").encode(), secret=True)
        return set(directory.iterdir()) != before
    except OSError as error:
        raise Failure(f"{error.filename or directory}: {error.strerror}") from None


def warn_of_replaced(settings: "Settings", assignments: Sequence[str], *, kept: Sequence[str]) -> None:
    """Warn of settings of the file and the environment that --secure replaces. `kept`: settings of the command line."""
    names = names_of(kept)
    for name, _, value in (each.partition("=") for each in assignments):
        field = FIELDS[name]
        given = getattr(settings, field.name)
        if name not in names and given not in {field.default, value}:
            logger.warning("--secure replaces %s=%s by %s; --set keeps it", name, given, value)


def names_of(assignments: Sequence[str]) -> set[str]:
    """Return the setting names of assignments `KEY=VALUE`."""
    return {each.partition("=")[0].strip() for each in assignments}


def introduction(secured: Secured, *, is_terminal: bool) -> Sequence[str]:
    """Return the lines printed after the first start, with the password only on a terminal (output may be logged)."""
    properties, directory = secured.properties, secured.properties.parent
    lines = [f"secured: clients log in as {ADMIN} with {properties}"]
    if is_terminal:
        lines += ["", *properties.read_text().splitlines(), ""]
    native = "" if secured.native is None else f" --native {secured.native}"
    options = f"--tls-ca {directory / 'ca.pem'} --user {ADMIN} --password-file {directory / f'{ADMIN}.password'}"
    return [*lines, f"secured: warmlog {options} topic list{native}"]


def _check_apart(directory: Path, settings: "Settings") -> None:
    """Raise CannotStart for a secrets directory inside a data directory."""
    for path in settings.data_paths:
        if directory.resolve().is_relative_to(path.resolve()):
            raise CannotStart(f"--secrets-dir: {directory} is in the data directory {path}, which may hold logs only")


def _check_shared(directory: Path) -> None:
    """Raise CannotStart unless the secrets of a cluster exist."""
    for name in ("ca.pem", f"{BROKER}.password", f"{ADMIN}.password"):
        if not (directory / name).exists():
            advice = "make them once"
            if directory.is_dir() and any(directory.iterdir()):
                advice = f"copy {name} from another broker, or, if the cluster is new, create the missing ones"
            raise CannotStart(
                f"--secure: {directory} has no {name}: the brokers of a cluster share their secrets; {advice}"
                f" with `warmlog cluster secrets {directory}`, and copy the directory to the machine of each broker"
            )


def _hosts(settings: "Settings", *addresses: str) -> list[str]:
    """Return the names and addresses by which clients may reach the broker. Raises CannotStart."""
    try:
        given = [parse_address(each)[0] for each in addresses if each != "none"]
        advertised = parse_listeners("advertised.listeners", settings.advertised_listeners)
    except SettingError as error:
        raise CannotStart(str(error)) from error
    return sorted({*given, *[host for host, _ in advertised.values()]} - WILDCARDS)


def _warn_of_exposed(directory: Path) -> None:
    """Warn of secrets that every user of the machine may read. Raises Failure."""
    try:
        secrets = sorted(path for path in directory.iterdir() if path.name in SECRETS or OF_BROKER.fullmatch(path.name))
        exposed = [path for path in secrets if path.stat().st_mode & 0o007]
        if exposed:
            names = " ".join(map(str, exposed))
            logger.warning("every user of this machine may read secrets: chmod 600 %s", names)
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}") from None


def _warn_of_changes(directory: Path, properties: Path, *, is_copy: bool) -> None:
    """Warn if the file for clients does not fit the secrets or, as in a copied directory, the path. Raises Failure."""
    try:
        password = (directory / f"{ADMIN}.password").read_text(encoding="utf-8").partition("\n")[0]
        wanted = _properties(password, directory / "ca.pem").splitlines()
        lines = properties.read_text(encoding="utf-8").splitlines()
        fits = lines[:-1] == wanted[:-1] if is_copy else lines == wanted
    except UnicodeDecodeError:
        fits = False
    except FileNotFoundError:
        fits = False
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}") from None
    if not fits:
        logger.warning(
            "%s does not fit %s.password, or was moved: remove it and start again to replace it, with that password for"
            " %s",
            properties,
            ADMIN,
            ADMIN,
        )


def _make_users(users: "Users", properties: Path) -> None:
    """Create the users, and the file for clients last. Raises CannotStart, Failure."""
    if users.is_member or users.has_nodes:
        users.make(BROKER)
    text = _properties(users.make(ADMIN), properties.with_name("ca.pem"))
    if properties.exists():  # in a cluster
        return
    try:
        write(properties, text.encode(), secret=True)
    except OSError as error:
        raise Failure(f"{error.filename or properties.parent}: {error.strerror}") from None


class Users(NamedTuple):
    """Creates users in the data directory of a stopped broker, and their passwords in `directory`.

    `is_member`: the broker adds them to its cluster. `has_nodes`: they are written to the store of `--nodes`.
    """

    settings: "Settings"
    data: Path
    directory: Path
    is_member: bool
    has_nodes: bool

    def make(self, user: str) -> str:
        """Create a user unless an earlier start has created it; return its password. Raises CannotStart, Failure."""
        file = self.directory / f"{user}.password"
        cluster_id = self.settings.warmlog_cluster_id if self.is_member else None
        try:
            is_new = not file.exists()
            if is_new:
                write(file, _new_password(), secret=True)
            password = read_password(file)
            self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
            credentials = {name: _credential(mechanism, password) for name, mechanism in MECHANISMS.items()}
            if self.has_nodes:
                create_user_of_nodes(self.data, user, credentials, must_be_new=is_new)
            else:
                node_id = self.settings.node_id
                create_user(self.data, user, credentials, node_id=node_id, cluster_id=cluster_id, must_be_new=is_new)
        except OSError as error:
            raise Failure(f"{error.filename or self.directory}: {error.strerror}") from None
        except UserExistsError:
            file.unlink()
            raise Failure(
                f"{self.data} has a user {user} already, and {self.directory} does not have its password: restore that"
                f" directory, or write a new password to {file} (mode 600), and give clients the new ca.pem"
            ) from None
        except (LogError, MetadataError) as error:
            raise Failure(str(error)) from error
        return password


def _new_password() -> bytes:
    """Return the line of a password file."""
    return f"{secrets.token_urlsafe(PASSWORD_BYTES)}\n".encode()


def _credential(mechanism: Mechanism, password: str) -> ScramCredential:
    salt = secrets.token_bytes(SALT_BYTES)
    salted = mechanism.salted_password(password, salt, DEFAULT_ITERATIONS)
    return ScramCredential.of_salted(mechanism, salted, salt, DEFAULT_ITERATIONS)


def _properties(password: str, ca: Path) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return (
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={MECHANISM}\n"
        f'sasl.jaas.config={module} required username="{ADMIN}" password="{_quoted(password)}";\n'
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={ca}\n"
    )


def _quoted(password: str) -> str:
    """Escape a password for a JAAS configuration in a Java properties file, which both have escapes."""
    jaas = password.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(
        each if " " <= each <= "~" else "".join(f"\\u{unit:04x}" for unit in _units(each))
        for each in jaas.replace("\\", "\\\\")
    )


def _units(character: str) -> list[int]:
    """Return the UTF-16 code units of a character."""
    data = character.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]
