"""Record batches of format version 2, shared by the wire, the log and the clients.

Start with `layout` (the batch header) and `batch` (batches without their records), then `record` (the record codec),
`reader` and `builder`. `_codec` is the compiled record codec; `codec` imports it if it was built.
"""
