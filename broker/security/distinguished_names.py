"""The name of a certificate's subject in Java's form of RFC 2253: `CN=alice,O=Example`.

It is read from the DER encoding, since Python's `ssl` provides neither the types of unknown attributes nor their
encoded values, and Java writes such attributes as `OID=#HEX`. OpenSSL has already verified the certificate.

Source: RFC 2253; sun.security.x509.AVA.toRFC2253String.
"""

from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_ENCODINGS: Final = {  # encodings of string types, by tag
    0x0C: "utf-8",
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String
    0x16: "ascii",  # IA5String
    0x1B: "ascii",  # GeneralString
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class CertificateError(ValueError):
    """The subject of a certificate cannot be read."""


def subject_of(certificate: bytes) -> str:
    """Return the name of a certificate's subject; empty if it has none. Raises CertificateError."""
    try:
        _, whole, _ = _element(certificate, _SEQUENCE)
        _, fields, _ = _element(whole, _SEQUENCE)
        if fields[:1] == bytes([_VERSION]):
            fields = _element(fields)[2]
        for _ in range(4):  # serial number, signature, issuer, validity
            fields = _element(fields)[2]
        _, name, _ = _element(fields, _SEQUENCE)
        return ",".join(reversed([_relative_name(each) for each in _elements(name, _SET)]))
    except (IndexError, UnicodeDecodeError) as error:
        raise CertificateError(f"the subject of the certificate cannot be read: {error}") from None


def _relative_name(attributes: bytes) -> str:
    return "+".join([_attribute(each) for each in _elements(attributes, _SEQUENCE)])


def _attribute(attribute: bytes) -> str:
    _, oid, encoded = _element(attribute, _OID)
    tag, value, _ = _element(encoded)
    dotted = _dotted(oid)
    keyword, encoding = _KEYWORDS.get(dotted), _ENCODINGS.get(tag)
    if keyword is None or encoding is None:
        return f"{keyword or dotted}=#{encoded.hex()}"
    return f"{keyword}={_escape(value.decode(encoding))}"


def _escape(text: str) -> str:
    escaped = "".join("\\00" if c == "\0" else f"\\{c}" if c in _ESCAPED else c for c in text)
    first = len(escaped) - len(escaped.lstrip(" \r"))
    last = len(escaped.rstrip(" \r"))
    return "".join(f"\\{c}" if not first <= index < last else c for index, c in enumerate(escaped))


def _dotted(oid: bytes) -> str:
    numbers, value = [], 0
    for byte in oid:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(data: bytes, tag: int) -> list[bytes]:
    """Return the contents of consecutive elements."""
    elements = []
    while data:
        _, content, data = _element(data, tag)
        elements.append(content)
    return elements


def _element(data: bytes, expected: int | None = None) -> tuple[int, bytes, bytes]:
    """Return the tag and content of the first element, and the rest. Raises IndexError."""
    tag, length, start = data[0], data[1], 2
    if expected is not None and tag != expected:
        raise IndexError(f"expected tag {expected:#x}, not {tag:#x}")
    if length >= 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise IndexError("it is cut off")
    return tag, data[start : start + length], data[start + length :]
