"""The console: a page for browsers at `/ui`, and its data as JSON at `/api/v1`.

Begin at `console` (who may ask, and how answers are sent) and `routes` (the table of endpoints). Each endpoint is a
function of a `Visit`: it asks the handlers of Kafka's requests where there is one, so that rights are checked once.
"""
