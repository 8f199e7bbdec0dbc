"""The version of the warmlog package, also exchanged in the native protocol's hello."""

VERSION = "0.2.0"
