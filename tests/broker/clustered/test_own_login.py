"""Whether a broker's own password fits the users of its cluster."""

from pathlib import Path

import pytest

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import encode, scram_key
from warmlog.broker.cluster.store import KeyValue, Range
from warmlog.broker.cluster_start import ClusterStartError, check_login
from warmlog.broker.replication.peers.login import PeerLogin
from warmlog.broker.security.scram import ScramCredential
from warmlog.protocol.scram import MECHANISMS

SALT, ITERATIONS = bytes(24), 4096


def image(**passwords: str) -> ClusterImage:
    """Return the image of a cluster whose user `broker` has a password by mechanism (`SHA_256`)."""
    items = []
    for name, password in passwords.items():
        mechanism = MECHANISMS[f"SCRAM-{name.replace('_', '-')}"]
        salted = mechanism.salted_password(password, SALT, ITERATIONS)
        credential = ScramCredential.of_salted(mechanism, salted, SALT, ITERATIONS)
        items.append(KeyValue(scram_key("broker", mechanism.name), encode(credential), 2, 2, 0))
    return ClusterImage(Range(2, tuple(items)))


@pytest.mark.parametrize(
    ("mechanism", "known", "fits"),
    [
        ("SCRAM-SHA-256", {"SHA_256": "right"}, True),
        ("SCRAM-SHA-512", {"SHA_512": "right", "SHA_256": "other"}, True),
        ("SCRAM-SHA-512", {"SHA_512": "other", "SHA_256": "right"}, False),
        ("SCRAM-SHA-512", {"SHA_256": "other"}, True),
        ("PLAIN", {"SHA_512": "right"}, True),
        ("PLAIN", {"SHA_512": "other"}, False),
        ("PLAIN", {"SHA_256": "other", "SHA_512": "right"}, False),
        ("PLAIN", {}, True),
        ("OAUTHBEARER", {"SHA_256": "other", "SHA_512": "other"}, True),
    ],
)
def test_the_password_fits_the_credential_of_the_mechanism(
    mechanism: str, known: dict[str, str], fits: bool, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("right\n")
    file.chmod(0o600)
    login = PeerLogin("broker", str(file), mechanism, "warmlog.inter.broker.password.file")
    if fits:
        check_login(login, image(**known))
        return
    with pytest.raises(ClusterStartError, match=f"{file} does not have the password that user broker has"):
        check_login(login, image(**known))
