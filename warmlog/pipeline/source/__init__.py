"""Read topics: from directories, from a broker, or from both.

Start with `options` and `input`; then `ranges` (from options to offsets), `planning` and `reading` (directories),
`remote` and `remote_reader` (a broker), `handover` (both), `stream`, and `arrow` (from batches to columns).
"""
