"""`warmlog cluster secrets`: create the secrets that brokers of a cluster share with --secure."""

from pathlib import Path

import click

from warmlog.cli.output import print_line
from warmlog.cli.security.secure import make_shared


@click.command("secrets", short_help="Make the certificates and passwords that secured brokers share.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    help="Make one certificate for all brokers, for this name (which may begin with `*.`) or address; repeatable. "
    "Default: each broker makes its own at its first start.",
)
def make(directory: Path, hosts: tuple[str, ...]) -> None:
    """Make a certificate authority and the passwords of the users admin and broker in DIRECTORY.

    Copy the directory to each broker of the cluster, and start it there with `warmlog serve --secure --secrets-dir
    DIRECTORY`. A second run creates only missing files. Clients need ca.pem and admin.properties. ca-key.pem is needed
    only by a broker that creates its own certificate, until it has done so.
    """
    is_new = make_shared(directory, hosts)
    print_line(f"{directory}  {'made' if is_new else 'kept'}")
