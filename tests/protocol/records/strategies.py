"""Hypothesis strategies for records: rows to encode, and corrupted bytes."""

from hypothesis import strategies as st

# Sizes around those where a length takes one more byte.
_CONTENTS = st.none() | st.binary(max_size=12) | st.sampled_from([bytes(63), bytes(64), bytes(8191), bytes(8192)])
_HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
_NOW = 1_700_000_000_000
_TIMES = st.integers(_NOW - 10_000, _NOW + 10_000) | st.sampled_from([0, 1, 2**31, 2**62])

ROWS = st.lists(st.tuples(_TIMES, _CONTENTS, _CONTENTS, _HEADERS | _HEADERS.map(tuple)), max_size=12)


@st.composite
def broken(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw `whole` with some bytes changed, truncated, or with trailing bytes."""
    changed = bytearray(whole)
    for position in draw(st.lists(st.integers(0, max(len(whole) - 1, 0)), max_size=4)):
        if changed:
            changed[position] = draw(st.integers(0, 255))
    end = draw(st.integers(0, len(changed)) | st.just(len(changed)))
    return bytes(changed[:end]) + draw(st.just(b"") | st.binary(max_size=4))
