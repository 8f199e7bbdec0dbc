"""`warmlog produce` and `warmlog consume`: records from standard input and to standard output.

`record_json` defines a record as a line of JSON in both directions; `input` splits standard input into records.
"""
