"""The principal of a connection. Source: org.apache.kafka.common.security.auth.KafkaPrincipal."""

from dataclasses import dataclass
from typing import Self

USER = "User"


@dataclass(frozen=True, slots=True)
class Principal:
    """An identity, of a type such as `User`. Its string, `User:alice`, is what ACLs and `super.users` name."""

    name: str
    type: str = USER

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `TYPE:NAME`. Raises ValueError."""
        kind, colon, name = text.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"a principal is written TYPE:NAME, such as User:alice, not {text!r}")
        return cls(name, kind)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")  # the principal of unauthenticated connections
