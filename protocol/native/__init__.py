"""The native protocol: each frame holds one msgpack map.

`messages` lists the operations, `codec` encodes and decodes them. docs/native-protocol.md is the specification for
client authors; tests run its examples against this package.
"""
