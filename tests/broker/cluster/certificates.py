"""Certificates for tests, issued by an authority of their own with the command-line tool of OpenSSL."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.requires import lacks

CONFIG = """\
[ca]
default_ca = own
[own]
database = {database}
new_certs_dir = {directory}
rand_serial = yes
default_md = sha256
default_days = 30
policy = any
unique_subject = no
[any]
organizationName = optional
commonName = optional
"""
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
PAST = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")


class Issued(NamedTuple):
    """A certificate and its key, both files in PEM format."""

    certificate: Path
    key: Path


class Authority:
    """A CA. `ca` is its certificate."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.ca = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._config = directory / "ca.cnf"
        self._directory = directory
        database = directory / "issued"
        database.touch()
        self._config.write_text(CONFIG.format(database=database, directory=directory))
        uses = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        openssl("req", "-x509", *KEY, "-keyout", self._key, "-out", self.ca, "-subj", "/O=warmlog tests", *uses)

    def issue(
        self, name: str, *, host: str = "127.0.0.1", subject: str = "/O=warmlog", expired: bool = False
    ) -> Issued:
        """Issue a certificate for servers and clients, and write it to files of this name."""
        issued = Issued(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request, extensions = self._directory / f"{name}.csr", self._directory / f"{name}.cnf"
        extensions.write_text(
            f"subjectAltName=IP:{host}\nbasicConstraints=critical,CA:FALSE\nsubjectKeyIdentifier=hash\n"
            "authorityKeyIdentifier=keyid\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        openssl("req", "-new", *KEY, "-keyout", issued.key, "-out", request, "-subj", subject)
        signed_by = ("-config", self._config, "-cert", self.ca, "-keyfile", self._key)
        files = ("-in", request, "-out", issued.certificate, "-extfile", extensions)
        openssl("ca", "-batch", "-notext", *signed_by, *files, *(PAST if expired else ()))
        return issued


def openssl(*arguments: str | Path) -> None:
    binary = shutil.which("openssl")
    if binary is None:
        lacks("openssl is not installed: apt-get install openssl")
    subprocess.run((binary, *arguments), check=True, capture_output=True)
