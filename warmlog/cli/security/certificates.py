"""`warmlog tls create`: a certificate authority, and certificates that it signs for brokers and clients.

    DIRECTORY/ca.pem         the certificate that clients trust
    DIRECTORY/ca-key.pem     signs further certificates; only this command reads it
    DIRECTORY/broker.pem     key and certificate of a broker, for `ssl.keystore.location`
    DIRECTORY/client-X.pem   key and certificate of client X, for `--tls-certificate` and `ssl.keystore.location`

Existing files are never replaced. Keys are P-256, with which a handshake takes half as much time as with RSA.
"""

import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import json_option
from warmlog.cli.output import print_json, print_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, KeyUsage

CA_DAYS: Final = 3650
CLOCK_SKEW: Final = timedelta(hours=1)  # time by which the validity of certificates is backdated, since clocks differ
MAX_NAME: Final = 64  # maximum length of a common name (RFC 5280, ub-common-name)
MAX_HOST: Final = 253  # maximum length of a domain name (RFC 1035)
LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST_NAME: Final = re.compile(rf"(?:\*\.)?(?:{LABEL}\.)*{LABEL}\.?")


class Authority(NamedTuple):
    """A certificate authority."""

    certificate: "Certificate"
    key: "EllipticCurvePrivateKey"


class Made(NamedTuple):
    """A file, and whether it was created or already existed."""

    path: Path
    is_new: bool


@click.command(short_help="Make a certificate authority, and certificates for brokers and clients.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    help="Name or address at which clients reach the broker; repeatable. Default: localhost and this machine's name.",
)
@click.option(
    "--broker", metavar="NAME", default="broker", show_default=True, help="Name of the broker's certificate and file."
)
@click.option("--client", "clients", metavar="NAME", multiple=True, help="Make a client's certificate; repeatable.")
@click.option(
    "--days",
    type=click.IntRange(1, CA_DAYS),
    default=365,
    show_default=True,
    help="Validity of new certificates; that of the authority is ten years.",
)
@json_option("One JSON object per file: path, new.")
def create(
    directory: Path, hosts: tuple[str, ...], broker: str, clients: tuple[str, ...], days: int, as_json: bool
) -> None:
    """Make a certificate authority in DIRECTORY, a certificate for a broker, and certificates for clients.

    A second run uses the existing authority and makes only missing files. A client's name is the common name of its
    certificate.
    """
    for file in make(directory, hosts=hosts, broker=broker, clients=clients, days=days):
        if as_json:
            print_json({"path": str(file.path), "new": file.is_new})
        else:
            print_line(f"{file.path}  {'made' if file.is_new else 'kept'}")


def make(
    directory: Path, *, hosts: Sequence[str] = (), broker: str = "broker", clients: Sequence[str] = (), days: int = 365
) -> list[Made]:
    """Make the missing files. `hosts`: names of the broker, by default this machine's. Raises Failure."""
    try:
        import cryptography as _  # noqa: F401  # takes time that no other command need spend
    except ImportError:
        raise Failure("the package cryptography is missing: pip install 'warmlog[tls]'") from None
    for name in (broker, *clients):
        _check_name(name)
    names = [_general_name(host) for host in hosts or own_hosts()]
    broker_file = directory / f"{broker}.pem"
    if hosts and broker_file.exists():
        raise Failure(f"{broker_file} exists: remove it to make a new one, or choose another --broker")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        wanted = [(broker_file, broker, names), *[(directory / f"client-{each}.pem", each, ()) for each in clients]]
        if all(path.exists() for path, _, _ in wanted):  # the CA's key may be stored elsewhere
            return [Made(path, is_new=False) for path, _, _ in wanted]
        authority, made = _authority(directory)
        made += [_signed(path, name, authority, days, of) for path, name, of in wanted]
    except OSError as error:
        raise Failure(f"{error.filename or directory}: {error.strerror}") from None
    return made


def make_authority(directory: Path) -> list[Made]:
    """Make the authority if it is missing. Raises Failure, OSError."""
    try:
        import cryptography as _  # noqa: F401
    except ImportError:
        raise Failure("the package cryptography is missing: pip install 'warmlog[tls]'") from None
    if (directory / "ca.pem").exists():  # the CA's key may be stored elsewhere
        return [Made(directory / "ca.pem", is_new=False)]
    return _authority(directory)[1]


def _check_name(name: str) -> None:
    """Check that a text can be a file name and a common name. Raises Failure."""
    if not name or len(name) > MAX_NAME or not name.isprintable() or "/" in name or name in {"ca", "ca-key", ".", ".."}:
        raise Failure(
            f"{name!r} cannot be the name of a certificate: use 1 to {MAX_NAME} printable characters without /"
        )


def own_hosts() -> list[str]:
    """Return the names by which clients reach this machine, locally and from its network."""
    return sorted({"localhost", "127.0.0.1", "::1", socket.gethostname()})


def is_host(text: str) -> bool:
    """Return whether a text is a host name or an address, for which a certificate can be made."""
    with suppress(ValueError):
        ipaddress.ip_address(text.strip("[]"))
        return True
    return _is_host_name(text)


def _general_name(host: str) -> "GeneralName":
    """Return the certificate entry for a host. Raises Failure."""
    from cryptography import x509

    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    if not _is_host_name(host):
        raise Failure(f"--host: {host!r} is neither a host name nor an address")
    return x509.DNSName(host.encode("idna").decode())


def _is_host_name(host: str) -> bool:
    """Return whether a text is a domain name (RFC 1123); its first label may be `*`."""
    try:
        text = host.encode("idna").decode()
    except UnicodeError:
        return False
    return len(text) <= MAX_HOST and HOST_NAME.fullmatch(text) is not None


def _authority(directory: Path) -> tuple[Authority, list[Made]]:
    """Load the authority, or make one if there is none. Raises Failure, OSError."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    ca, ca_key = directory / "ca.pem", directory / "ca-key.pem"
    if ca.exists() and not ca_key.exists():
        raise Failure(f"{ca_key} is needed to sign a certificate: put it back, or use an empty directory")
    is_new_key, is_new = not ca_key.exists(), not ca.exists()
    if is_new_key:
        write(ca_key, _pem_key(ec.generate_private_key(ec.SECP256R1())), secret=True)
    try:
        loaded = load_pem_private_key(ca_key.read_bytes(), None)
        if is_new and isinstance(loaded, ec.EllipticCurvePrivateKey):  # also after an interrupted run
            write(ca, _pem(_certificate("warmlog CA", loaded, None, CA_DAYS, ())), secret=False)
        certificate = x509.load_pem_x509_certificate(ca.read_bytes())
    except (ValueError, TypeError):
        raise Failure(f"{ca} or {ca_key} is not a PEM file without a password") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != certificate.public_key():
        raise Failure(f"{ca_key} is not the key of {ca}")
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise Failure(f"{ca} has expired: use an empty directory")
    return Authority(certificate, loaded), [Made(ca, is_new=is_new), Made(ca_key, is_new=is_new_key)]


def is_issued(broker_file: Path, ca: Path) -> bool:
    """Return whether a certificate was issued by one in `ca`, perhaps through others in its file. Raises OSError."""
    from cryptography import x509

    try:
        certificate, *rest = x509.load_pem_x509_certificates(broker_file.read_bytes())
        trusted = x509.load_pem_x509_certificates(ca.read_bytes())
        while certificate not in trusted and not any(_issued(certificate, each) for each in trusted):
            certificate = next(each for each in rest if _issued(certificate, each))
            rest.remove(certificate)
    except (ValueError, StopIteration):
        return False
    return True


def _issued(certificate: "Certificate", issuer: "Certificate") -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # noqa: BLE001  # InvalidSignature of a module of its own, ValueError, TypeError
        return False
    return True


def lacking(broker_file: Path, ca: Path, hosts: Sequence[str]) -> str | None:
    """Return the problem of a certificate: not issued by the CA, expired, or without a host. Raises OSError."""
    from cryptography import x509

    try:
        if not is_issued(broker_file, ca):
            return f"{broker_file} was not issued by {ca}, or one of them is damaged"
        certificate = x509.load_pem_x509_certificate(broker_file.read_bytes())
        names = set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = set()
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except ValueError:  # raised for an invalid extension
        return f"{broker_file} is damaged"
    if certificate.not_valid_after_utc < datetime.now(UTC):
        return f"{broker_file} has expired"
    missing = [host for host in hosts if _general_name(host) not in names]
    return f"{broker_file} is not for {', '.join(missing)}" if missing else None


def _signed(path: Path, name: str, authority: Authority, days: int, names: Sequence["GeneralName"]) -> Made:
    """Write a key and a certificate, unless the file exists. Raises OSError."""
    from cryptography.hazmat.primitives.asymmetric import ec

    if path.exists():
        return Made(path, is_new=False)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(name, key, authority, days, names)
    write(path, _pem_key(key) + _pem(certificate), secret=True)
    return Made(path, is_new=True)


def _certificate(
    name: str,
    key: "EllipticCurvePrivateKey",
    authority: Authority | None,
    days: int,
    names: Sequence["GeneralName"],
) -> "Certificate":
    """Return a certificate, self-signed if `authority` is None. `names` are the hosts of a broker."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    if authority is not None:
        end = min(end, authority.certificate.not_valid_after_utc)
    signer = key if authority is None else authority.key
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if names:  # a broker is also a client of the others
        purposes.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    is_ca = authority is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(_usage(is_ca=is_ca), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not is_ca:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _usage(*, is_ca: bool) -> "KeyUsage":
    from cryptography.x509 import KeyUsage

    return KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: "Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_key(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write(path: Path, data: bytes, *, secret: bool) -> None:
    """Create a file atomically; a secret file is never readable by others.

    Raises OSError.
    """
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if secret else 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.link(new, path)  # unlike a rename, this does not replace an existing file
    finally:
        new.unlink(missing_ok=True)
