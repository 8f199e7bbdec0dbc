"""Request handlers: values in, values out, without sockets or wire formats.

Start with `dispatch`, which passes each request and its `context` to a handler. Each subfolder is a request family.
"""
