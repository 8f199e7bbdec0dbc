"""Principals of clients with a certificate: `ssl.principal.mapping.rules`.

    DEFAULT                             the whole name, such as CN=alice,O=Example
    RULE:PATTERN/REPLACEMENT/           for names that match as a whole; $1 stands for a group
    RULE:PATTERN/REPLACEMENT/L          the same in lower case; U: in upper case

The first rule that applies wins. Source: org.apache.kafka.common.security.ssl.SslPrincipalMapper (KIP-371).
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from warmlog.broker.security.distinguished_names import CertificateError, subject_of
from warmlog.broker.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    import re2

_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)|)\s*(?:,|$)")
_BACK_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)")
_CASES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}


class _Rule(NamedTuple):
    """A rule; `pattern` is None for DEFAULT."""

    pattern: "re2._Regexp[str] | None"
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """Return the principal's name, or None if the rule does not apply."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        replaced: str = self.pattern.sub(self._expand, name)
        return _CASES[self.case](replaced)

    def _expand(self, match: Any) -> str:
        def part(group: re.Match[str]) -> str:
            if group[1] is not None:
                return group[1]
            digits = group[2]
            count = self.pattern.groups if self.pattern is not None else 0
            while len(digits) > 1 and int(digits) > count:
                digits = digits[:-1]
            if int(digits) > count:
                return group[0]
            return (match.group(int(digits)) or "") + group[2][len(digits) :]

        return _BACK_REFERENCE.sub(part, self.replacement)


class PrincipalMapper:
    """Names the principal of a client by its certificate."""

    def __init__(self, rules: str) -> None:
        """Parse the rules. Raises ValueError for invalid ones."""
        self._rules = _parse(rules)

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Return the principal of a certificate in DER, ANONYMOUS without one. Raises CertificateError."""
        if certificate is None:
            return ANONYMOUS
        subject = subject_of(certificate)
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return Principal(name)
        raise CertificateError(f"no rule of ssl.principal.mapping.rules applies to {subject!r}")


def _parse(text: str) -> list[_Rule]:
    import re2  # brokers without client certificates need only DEFAULT

    rules, start = [], 0
    text = text.strip()
    while start < len(text):
        match = _RULE.match(text, start)
        if match is None or match.end() == start:
            raise ValueError(f"not a rule: {text[start:]!r}; expected DEFAULT or RULE:PATTERN/REPLACEMENT/[LU]")
        start = match.end()
        if match[1]:
            rules.append(_Rule(None, "", ""))
        elif match[2] is not None:
            options = re2.Options()
            options.log_errors = False
            try:
                pattern = re2.compile(match[2].replace(r"\/", "/"), options)
            except re2.error as error:
                raise ValueError(f"the pattern of the rule {match[0].strip()!r} is invalid: {error}") from None
            rules.append(_Rule(pattern, match[3], match[4]))
    return rules
