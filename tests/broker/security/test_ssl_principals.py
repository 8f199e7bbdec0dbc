"""Names of certificates as Java writes them, and the rules that make principals of them."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.broker.cluster.certificates import KEY, openssl
from warmlog.broker.security.distinguished_names import CertificateError, subject_of
from warmlog.broker.security.principal import ANONYMOUS
from warmlog.broker.security.ssl_principals import PrincipalMapper


@cache
def certificate(subject: str) -> bytes:
    """Return a certificate in DER of a subject as OpenSSL takes it."""
    with TemporaryDirectory() as directory:
        found = Path(directory, "der")
        openssl("req", "-x509", "-utf8", *KEY, "-keyout", Path(directory, "key"), "-out", found, "-outform", "DER",
                "-subj", subject)  # fmt: skip
        return found.read_bytes()


def test_the_most_specific_attribute_comes_first() -> None:
    der = certificate("/C=DE/ST=Hessen/O=Example, Inc./OU=Größe/CN=alice")
    assert subject_of(der) == r"CN=alice,OU=Größe,O=Example\, Inc.,ST=Hessen,C=DE"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a=b", r"a\=b"),
        ('<"x">;#', r"\<\"x\"\>\;\#"),
        (" both ", r"\ both\ "),
        ("in the middle", "in the middle"),
        ("   ", r"\ \ \ "),
    ],
)
def test_special_characters_are_escaped(text: str, written: str) -> None:
    assert subject_of(certificate(f"/CN={text}")) == f"CN={written}"


def test_an_unknown_attribute_is_written_in_hexadecimal() -> None:
    der = certificate("/CN=a/emailAddress=a@b")
    assert subject_of(der) == "1.2.840.113549.1.9.1=#1603614062,CN=a"


def test_attributes_of_one_relative_name_are_joined() -> None:
    assert subject_of(certificate("/CN=a+UID=7")) in {"CN=a+UID=7", "UID=7+CN=a"}


def test_a_subject_may_be_empty() -> None:
    assert not subject_of(certificate("/"))


@pytest.mark.parametrize("size", [0, 1, 5, 40, 80])
def test_a_certificate_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(CertificateError):
        subject_of(certificate("/CN=alice")[:size])


NAME = "CN=kafka-1.example.com,OU=Dev,O=Example,C=DE"


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", f"User:{NAME}"),
        (r"RULE:^CN=(.*?),OU=Dev.*$/$1/", "User:kafka-1.example.com"),
        (r"RULE:^CN=(.*?),OU=Ops.*$/$1/, RULE:^.*OU=(.*?),O=(.*?),.*$/$1@$2/L", "User:dev@example"),
        (r"RULE:^CN=(.*?),.*$/$1/U", "User:KAFKA-1.EXAMPLE.COM"),
        (r"RULE:nothing/x/,DEFAULT", f"User:{NAME}"),
        (r"RULE:^CN=([a-z]+).*$/$1\/$2/", "User:kafka/$2"),
        (r"RULE:^CN=([a-z]+).*$/$12/", "User:kafka2"),
    ],
)
def test_the_first_rule_that_applies_names_the_principal(rules: str, principal: str) -> None:
    der = certificate("/C=DE/O=Example/OU=Dev/CN=kafka-1.example.com")
    assert str(PrincipalMapper(rules).principal_of(der)) == principal


def test_a_name_without_a_rule_is_refused() -> None:
    with pytest.raises(CertificateError, match="no rule"):
        PrincipalMapper("RULE:^CN=b$/b/").principal_of(certificate("/CN=a"))


def test_a_client_without_a_certificate_is_anonymous() -> None:
    assert PrincipalMapper("DEFAULT").principal_of(None) is ANONYMOUS


@pytest.mark.parametrize("rules", ["default", "RULE:a/b", "RULE:(/b/", "DEFAULT garbage"])
def test_invalid_rules_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"rule"):
        PrincipalMapper(rules)
