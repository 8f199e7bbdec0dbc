"""A broker of a cluster says at the start that others cannot show who they are."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.broker.api.authorization.rig import STANDARD
from warmlog.broker.frontend import authorizer_of
from warmlog.broker.security.acl_index import AclIndex
from warmlog.broker.settings.loading import load_settings

TLS = ("listeners=SSL://127.0.0.1:9093", "ssl.truststore.location=ca.pem")


@pytest.mark.parametrize(
    ("assignments", "warns"),
    [
        ((), True),
        (("super.users=User:ANONYMOUS",), False),
        (TLS, True),
        ((*TLS, "ssl.client.auth=required"), False),
        ((*TLS, "listener.name.ssl.ssl.client.auth=required"), False),
    ],
)
def test_brokers_without_certificates_are_warned_of(
    assignments: tuple[str, ...], caplog: pytest.LogCaptureFixture, *, warns: bool
) -> None:
    settings = load_settings(assignments=(f"authorizer.class.name={STANDARD}", *assignments))
    node: Any = SimpleNamespace(is_alone=False, image=SimpleNamespace(acls=AclIndex()))
    assert authorizer_of(settings, node) is not None
    assert ("replicate only with CLUSTER_ACTION" in caplog.text) is warns


def test_a_broker_by_itself_has_no_others(caplog: pytest.LogCaptureFixture) -> None:
    node: Any = SimpleNamespace(is_alone=True, image=SimpleNamespace(acls=AclIndex(), credentials={}))
    assert authorizer_of(load_settings(assignments=(f"authorizer.class.name={STANDARD}",)), node) is not None
    assert authorizer_of(load_settings(), node) is None
    assert not caplog.records
