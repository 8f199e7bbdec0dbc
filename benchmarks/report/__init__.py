"""Results for readers.

Start with `document` (the table, the JSON file, and the figures of a page); `pictures` draws the figures of
`docs/page-cache.md` and `docs/sparse-index.md`.
"""
