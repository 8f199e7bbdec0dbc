"""The console: a page for browsers at `/ui`, and its data as JSON at `/api/v1`.

Start with `console` (access rules, and how answers are sent) and `routes` (the table of endpoints). Each endpoint is a
function of a `Visit`; it calls the handlers of Kafka's requests where there is one, so that rights are checked once.
"""
