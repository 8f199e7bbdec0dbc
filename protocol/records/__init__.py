"""Record batches of format version 2, shared by the wire, the log and the clients.

Start with `layout` (the batch header) and `batch` (batches without their records), then `record` (the record codec),
`reader` and `builder`. Modules named with an underscore are compiled versions; `codec`, `column_builder` and
`offset_map` import them where they were built, and the pure Python ones otherwise.
"""
