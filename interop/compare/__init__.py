"""Compare warmlog's responses with a real Kafka's, request by request.

Start with `__main__` (a run), then `scenarios` (the requests) and `expected` (the known differences).
"""
