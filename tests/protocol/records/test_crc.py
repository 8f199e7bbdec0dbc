"""CRC-32C without the modules that its package imports."""

import crc32c as package

from warmlog.protocol.records import crc


def test_the_check_value_of_the_crc_catalogue() -> None:
    assert crc.crc32c(b"123456789") == 0xE3069283
    assert crc.crc32c(b"6789", crc.crc32c(b"12345")) == 0xE3069283


def test_the_extension_computes_what_the_package_computes() -> None:
    data = bytes(range(256)) * 300
    assert crc.crc32c(data, 0, True) == package.crc32c(data)


def test_an_extension_that_is_not_there_is_none() -> None:
    assert crc.load_extension("crc32c", "no_such_extension") is None
    assert crc.load_extension("no_such_package", "_crc32c") is None
    assert crc.load_extension("struct", "_crc32c") is None  # a module, not a package
