"""Decode keys and values of records into columns of a table.

Start with `formats` (what a user chooses), then `readers` (a schema as a type of Arrow and a function from bytes),
`layout` (which columns a table gets from schemas), `decoding` (what a task does) and `catalog` (what the job knows of
schemas, batch after batch).
"""
