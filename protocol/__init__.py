"""Encode and decode everything warmlog sends or stores: sans-IO, without sockets, files, clocks or threads.

`request`, `response` and `groups` hold the neutral values; `kafka` and `native` map them to the two wire formats,
`frame` splits the stream, `records` is the batch format shared by the wire and the log. Start with `request`.
"""
