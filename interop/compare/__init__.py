"""Compare warmlog's answers with those of a real Kafka, request by request.

Start reading with `__main__` (what a run does), then `scenarios` (the requests) and `expected` (the known differences).
"""
