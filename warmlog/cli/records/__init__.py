"""`warmlog produce` and `warmlog consume`: send records from standard input, print records to standard output.

`record_json` defines a record as a line of JSON in both directions; `input` splits standard input into records.
"""
