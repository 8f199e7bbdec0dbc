"""Check each request before its handler sees it. Begin at `table`: which API needs which right.

Handlers know nothing of this: what a sender may not ask is taken out of the request, and the response gets its refusal
in the same place. Without an authorizer, none of it is between the dispatcher and the handlers.
"""
