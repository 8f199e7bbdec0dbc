"""The native protocol: a frame is one msgpack map.

`messages` says which there are, `codec` turns them into bytes and back. The specification for people who write a client
is docs/native-protocol.md; its worked examples are run against this package.
"""
