"""The version of warmlog, said by both ends in their hello; the package takes its version from here."""

VERSION = "0.1.0"
