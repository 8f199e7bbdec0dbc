"""Check the rights of each request before it reaches its handler. Start with `table`: the rights that each API needs.

Handlers are unaware of this: unauthorized items are removed from the request, and their refusals are inserted into the
response in the same positions. Without an authorizer, requests pass directly from the dispatcher to the handlers.
"""
