"""Decode keys and values of records into columns of a table.

Start with `formats` (what a user chooses), then `readers` (a schema as a type of Arrow and a function from bytes),
`layout` (the columns that a table gets from schemas), `decoding` (the work of a task) and `catalog` (the schemas that
the job has learned from batches).
"""
