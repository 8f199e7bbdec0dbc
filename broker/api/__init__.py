"""What the broker does for each request: one module per family, values in, values out.

Handlers see neutral requests and a context, never sockets, files or wire formats.
"""
