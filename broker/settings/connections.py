"""How many connections a listener and an address may have. Source: org.apache.kafka.network.ConnectionQuotas."""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from warmlog.broker.settings.types import SettingError

OVERRIDES = "max.connections.per.ip.overrides"
MAX_CONNECTIONS = (1 << 31) - 1


def address_key(address: str) -> str:
    """Return an address in the form of `parse_overrides`: an IPv4 address in IPv6 form is an IPv4 address."""
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(parsed)


@lru_cache(maxsize=4)
def parse_overrides(text: str) -> Mapping[str, int]:
    """Parse `ADDRESS:NUMBER,...` of `max.connections.per.ip.overrides`. Raises SettingError."""
    found: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        address, _, number = part.rpartition(":")
        try:
            key = address_key(address.strip().removeprefix("[").removesuffix("]"))
        except ValueError:
            raise SettingError(
                f"{OVERRIDES}: expected ADDRESS:NUMBER, separated by commas, not {part!r} (names are not resolved)"
            ) from None
        if not number.strip().isdecimal() or int(number) > MAX_CONNECTIONS:
            raise SettingError(f"{OVERRIDES}: expected a number of connections for {address}, not {number!r}")
        found[key] = int(number)
    return found
