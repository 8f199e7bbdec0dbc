"""Record batches of format 2, the same on the wire, on the disk and in every client.

Reading order: `layout` (the 61-byte header), `batch` (find, check and stamp batches without opening them), `record`
(records inside a batch: the reference codec) with its compiled twin `_codec`, chosen by `codec`; `compression`;
`reader` (a batch to records) and `builder` (records to a batch); `columns` (records as Arrow columns), its twin
`_columns`, chosen by `column_builder`.

One codec for all: validation in the broker, the client, the command line and the pipeline.
"""
