"""Bytes to values and back, for the wire and the disk.

Sans-IO: nothing here knows a socket, a file, a clock, a thread or trio. Bytes come in as buffers, values go out, and
the other way round; who moves the bytes is decided elsewhere (`broker.net` on the server, `warmlog.client` on the other
end).
"""
