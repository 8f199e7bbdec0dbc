"""The files of the page: read once, compressed once, sent with an ETag."""

import gzip
from functools import cache
from hashlib import sha256
from typing import Final, NamedTuple

from warmlog.ui import MISSING, page_files

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
INDEX: Final = "index.html"


class PageFile(NamedTuple):
    """A file of the page, plain and compressed."""

    content_type: str
    data: bytes
    packed: bytes
    etag: str


@cache
def load_page() -> dict[str, PageFile]:
    """Return the files by their path below `/ui/static`. Reads and compresses the files: call it in a worker thread."""
    return {name: _page_file(name, data) for name, data in page_files().items()}


def missing_page() -> PageFile | None:
    """Return the page that explains how to build missing libraries."""
    return load_page().get(MISSING)


def _page_file(name: str, data: bytes) -> PageFile:
    suffix = name[name.rindex(".") :]
    packed = gzip.compress(data, 9, mtime=0)
    return PageFile(TYPES[suffix], data, packed, f'"{sha256(data).hexdigest()[:20]}"')
