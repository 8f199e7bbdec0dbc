# cython: language_level=3, embedsignature=False, binding=False, cdivision=True
"""The compiled version of `filtering.OffsetMap`, with the same results and errors, without an object per record.

Record keys are identified by a 128-bit SipHash with a random key per map, so that collisions cannot be constructed. The
table uses open addressing with 24 bytes per entry; its pages are allocated when they are first touched. Unusual and
corrupt batches are passed to the reference, which raises the errors.

1. A pointer is compared with the end before it is dereferenced, a length with the remaining bytes before it is added.
2. A batch is filtered completely before its output counts as written.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

import os

from warmlog.protocol.records.crc import crc32c

from warmlog.protocol.errors import CorruptBatchError
from warmlog.protocol.records.compaction import filtering as reference
from warmlog.protocol.records import layout
from warmlog.protocol.records.batch import read_header, verify_crc
from warmlog.protocol.records.compaction.filtering import Filtered, Kept

cdef extern from *:
    """
    #define warmlog_scale(hash, slots) ((uint64_t)(((unsigned __int128)(hash) * (slots)) >> 64))
    """
    uint64_t scale "warmlog_scale"(uint64_t hash, uint64_t slots) nogil

cdef Py_ssize_t HEADER_SIZE = layout.HEADER_SIZE
cdef Py_ssize_t LOG_OVERHEAD = layout.LOG_OVERHEAD
cdef Py_ssize_t CRC_START = layout.CRC_START
cdef Py_ssize_t CRC_POSITION = layout.CRC_POSITION
cdef int MAGIC = layout.MAGIC
cdef int EXTRAORDINARY_BITS = reference.EXTRAORDINARY_BITS
cdef int LOG_APPEND_TIME_BIT = layout.LOG_APPEND_TIME_BIT
cdef int DELETE_HORIZON_BIT = layout.DELETE_HORIZON_BIT
cdef int64_t NO_TIMESTAMP = layout.NO_TIMESTAMP
cdef int64_t NO_OFFSET = reference.NO_OFFSET
# Maximum growth of a record whose timestamp delta changes: a varint of 10 bytes instead of 1, and one more length byte.
cdef Py_ssize_t MAX_GROWTH = 10


cdef struct Entry:
    uint64_t low
    uint64_t high
    int64_t offset_plus_one  # 0: free


# A record: bytes [start, end), with its first field after the length at `fields` and the field after its timestamp at
# `rest`.
cdef struct RecordSpan:
    const uint8_t *start
    const uint8_t *fields
    const uint8_t *rest
    const uint8_t *end
    const uint8_t *key
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_length
    bint is_tombstone


# --- numbers

cdef inline int32_t int32_at(const uint8_t *at) noexcept nogil:
    return <int32_t>((<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3])


cdef inline int64_t int64_at(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t><uint32_t>int32_at(at) << 32) | <uint32_t>int32_at(at + 4))


cdef inline void put_int32(uint8_t *at, int32_t number) noexcept nogil:
    at[0], at[1], at[2], at[3] = (number >> 24) & 0xFF, (number >> 16) & 0xFF, (number >> 8) & 0xFF, number & 0xFF


cdef inline void put_int64(uint8_t *at, int64_t number) noexcept nogil:
    put_int32(at, <int32_t>(number >> 32))
    put_int32(at + 4, <int32_t>number)


cdef inline const uint8_t *read_number(const uint8_t *at, const uint8_t *end, int last_shift, int64_t *number) noexcept nogil:
    """Read the varint at `at`; return the pointer after it, or NULL if it is cut off or too long."""
    cdef uint64_t bits = 0
    cdef int shift = 0
    while at < end and shift <= last_shift:
        bits |= <uint64_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            number[0] = <int64_t>((bits >> 1) ^ (0 - (bits & 1)))
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline uint8_t *write_number(uint8_t *at, int64_t number) noexcept nogil:
    cdef uint64_t bits = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    while bits >= 0x80:
        at[0] = <uint8_t>(bits | 0x80)
        bits >>= 7
        at += 1
    at[0] = <uint8_t>bits
    return at + 1


cdef bint read_span(const uint8_t *at, const uint8_t *end, RecordSpan *span) noexcept nogil:
    """Parse the record at `at`; return False if it is invalid."""
    cdef int64_t length, offset_delta, key_length, value_length
    span.start = at
    at = read_number(at, end, 28, &length)
    if at == NULL or length < 1 or length > end - at:
        return False
    span.fields = at
    span.end = end = at + length
    at = read_number(at + 1, end, 63, &span.timestamp_delta)
    if at == NULL:
        return False
    span.rest = at
    at = read_number(at, end, 28, &offset_delta)
    if at == NULL:
        return False
    at = read_number(at, end, 28, &key_length)
    if at == NULL or key_length < -1 or key_length > end - at:
        return False
    span.key = at
    if key_length > 0:
        at += key_length
    at = read_number(at, end, 28, &value_length)
    if at == NULL or value_length < -1 or value_length > end - at:
        return False
    span.offset_delta = <int32_t>offset_delta
    span.key_length = <int32_t>key_length
    span.is_tombstone = value_length < 0
    return True


# --- SipHash-2-4 of 128 bits. Source: Aumasson and Bernstein, SipHash: a fast short-input PRF.

cdef inline uint64_t rotated(uint64_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (64 - bits))


cdef inline void sip_round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] = rotated(v[0], 32) + v[3]
    v[2] += v[1]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] = rotated(v[2], 32)


cdef inline void sip_hash(const uint8_t *data, Py_ssize_t length, uint64_t k0, uint64_t k1, Entry *digest) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef const uint8_t *end = data + (length & ~7)
    cdef int i
    v[0] = k0 ^ <uint64_t>0x736F6D6570736575
    v[1] = k1 ^ <uint64_t>0x646F72616E646F6D ^ <uint64_t>0xEE
    v[2] = k0 ^ <uint64_t>0x6C7967656E657261
    v[3] = k1 ^ <uint64_t>0x7465646279746573
    while data < end:
        memcpy(&word, data, 8)
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
        data += 8
    word = <uint64_t>length << 56
    for i in range(length & 7):
        word |= <uint64_t>data[i] << (8 * i)
    v[3] ^= word
    sip_round(v)
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for i in range(4):
        sip_round(v)
    digest.low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for i in range(4):
        sip_round(v)
    digest.high = v[0] ^ v[1] ^ v[2] ^ v[3]


# --- the map

cdef class View:
    """A buffer held while it is read."""

    cdef Py_buffer buffer
    cdef const uint8_t *data
    cdef Py_ssize_t size

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        self.data = <const uint8_t *>self.buffer.buf
        self.size = self.buffer.len

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


cdef struct BlockKept:  # the records kept of a block
    Py_ssize_t size
    int32_t count
    int64_t max_timestamp
    bint has_tombstone


cdef class OffsetMap:
    """The compiled version of `filtering.OffsetMap`."""

    ENTRY_SIZE = sizeof(Entry)

    cdef Entry *_table
    cdef uint64_t _slots, _k0, _k1
    cdef Py_ssize_t _entries
    cdef readonly Py_ssize_t max_entries
    cdef readonly bint is_full
    cdef readonly int64_t latest_offset
    cdef uint8_t *_scratch
    cdef Py_ssize_t _scratch_size

    def __init__(self, buffer_size, load_factor=0.9):
        slots = buffer_size // sizeof(Entry)
        self.max_entries = int(slots * load_factor)
        if self.max_entries < 1:
            raise ValueError(f"a buffer of {buffer_size} bytes is too small for an offset map")
        self._slots = slots + 1  # one slot is always free, so that every search ends
        free(self._table)
        self._table = <Entry *>calloc(self._slots, sizeof(Entry))
        if self._table == NULL:
            raise MemoryError
        self._k0, self._k1 = int.from_bytes(os.urandom(8)), int.from_bytes(os.urandom(8))
        self._entries = 0
        self.is_full = False
        self.latest_offset = NO_OFFSET

    def __dealloc__(self):
        free(self._table)
        free(self._scratch)

    def __len__(self):
        return self._entries

    def clear(self, int64_t latest_offset):
        if self._entries:
            memset(self._table, 0, self._slots * sizeof(Entry))
        self._entries = 0
        self.latest_offset = latest_offset
        self.is_full = False

    def skip_to(self, int64_t offset):
        if offset > self.latest_offset:
            self.latest_offset = offset

    def find(self, key):
        cdef View view = View(key)
        return self._find(view.data, view.size)

    cdef inline Entry *_slot(self, const uint8_t *key, Py_ssize_t length, Entry *digest) noexcept nogil:
        """Return the entry of a key, or the free entry to store it in."""
        sip_hash(key, length, self._k0, self._k1, digest)
        cdef uint64_t slot = scale(digest.low, self._slots)
        cdef Entry *entry = &self._table[slot]
        while entry.offset_plus_one != 0 and (entry.low != digest.low or entry.high != digest.high):
            slot += 1
            if slot == self._slots:
                slot = 0
            entry = &self._table[slot]
        return entry

    cdef inline int64_t _find(self, const uint8_t *key, Py_ssize_t length) noexcept nogil:
        cdef Entry digest
        return self._slot(key, length, &digest).offset_plus_one - 1

    # --- building

    cdef int _add(self, const uint8_t *at, const uint8_t *end, int32_t count, int64_t base_offset, int64_t first_offset) noexcept nogil:
        """Add keys; return 0 if all were added, 1 if the map is full, -1 for an invalid record."""
        cdef RecordSpan span
        cdef Entry digest
        cdef Entry *entry
        cdef int64_t offset
        cdef int32_t index
        for index in range(count):
            if not read_span(at, end, &span):
                return -1
            at = span.end
            offset = base_offset + span.offset_delta
            if offset < first_offset:
                continue
            if span.key_length >= 0:
                entry = self._slot(span.key, span.key_length, &digest)
                if entry.offset_plus_one == 0:
                    if self._entries >= self.max_entries:
                        self.is_full = True
                        return 1
                    self._entries += 1
                    entry.low, entry.high = digest.low, digest.high
                entry.offset_plus_one = offset + 1
            if offset > self.latest_offset:
                self.latest_offset = offset
        return 0 if at == end else -1

    def add_records(self, records, Py_ssize_t count, int64_t base_offset, int64_t first_offset):
        cdef View view = View(records)
        if self._add(view.data, view.data + view.size, <int32_t>count, base_offset, first_offset) < 0:
            _refuse(records, count)

    def add_batches(self, data, Py_ssize_t position, Py_ssize_t end, int64_t first_offset):
        cdef View view = View(data)
        cdef const uint8_t *at
        cdef Py_ssize_t size
        cdef int64_t last_offset
        cdef int outcome
        _check_range(view, position, end)
        while position + HEADER_SIZE <= end:
            at = view.data + position
            size = _ordinary_size(data, at, position, end)
            if size == 0:
                return position
            outcome = self._add(at + HEADER_SIZE, at + size, int32_at(at + 57), int64_at(at), first_offset)
            if outcome < 0:
                _refuse(memoryview(data)[position + HEADER_SIZE : position + size], int32_at(at + 57))
            if outcome > 0:
                return position
            last_offset = int64_at(at) + int32_at(at + 23)
            if last_offset >= first_offset:
                self.skip_to(last_offset)
            position += size
        return position

    # --- filtering

    cdef bint _is_kept(self, RecordSpan *span, int64_t offset, bint is_expired) noexcept nogil:
        if offset > self.latest_offset:
            return True
        if span.key_length < 0 or (span.is_tombstone and is_expired):
            return False
        return offset >= self._find(span.key, span.key_length)

    cdef int _filter(
        self, const uint8_t *header, const uint8_t *at, const uint8_t *end, int64_t now_ms, uint8_t *out, BlockKept *kept
    ) noexcept nogil:
        """Copy the kept records to `out`, which has capacity for all; return -1 for an invalid record."""
        cdef RecordSpan span
        cdef int64_t base_offset = int64_at(header)
        cdef int64_t base_timestamp = int64_at(header + 27)
        cdef int64_t timestamp
        cdef bint is_expired = header[22] & DELETE_HORIZON_BIT and now_ms >= base_timestamp
        cdef int32_t count = int32_at(header + 57)
        cdef int32_t index
        cdef const uint8_t *run = NULL  # consecutive kept records are copied together
        kept.size = kept.count = 0
        kept.max_timestamp = NO_TIMESTAMP
        kept.has_tombstone = False
        for index in range(count):
            if not read_span(at, end, &span):
                return -1
            at = span.end
            if self._is_kept(&span, base_offset + span.offset_delta, is_expired):
                if run == NULL:
                    run = span.start
                kept.count += 1
                timestamp = base_timestamp + span.timestamp_delta
                if timestamp > kept.max_timestamp:
                    kept.max_timestamp = timestamp
                if span.is_tombstone:
                    kept.has_tombstone = True
            elif run != NULL:
                memcpy(out + kept.size, run, span.start - run)
                kept.size += span.start - run
                run = NULL
        if at != end:
            return -1
        if run != NULL:
            memcpy(out + kept.size, run, at - run)
            kept.size += at - run
        return 0

    cdef uint8_t *_room(self, Py_ssize_t size) except NULL:
        if self._scratch_size < size:
            self._scratch = <uint8_t *>realloc(self._scratch, size)
            if self._scratch == NULL:
                self._scratch_size = 0
                raise MemoryError
            self._scratch_size = size
        return self._scratch

    def filter_records(self, records, header, int64_t now_ms):
        cdef View view = View(records)
        cdef uint8_t *out = self._room(view.size + 1)
        cdef BlockKept kept
        packed = layout.HEADER.pack(*header)
        cdef View head = View(packed)
        if self._filter(head.data, view.data, view.data + view.size, now_ms, out, &kept) < 0:
            _refuse(records, header.record_count)
        kept_records = None if kept.count == header.record_count else PyBytes_FromStringAndSize(<char *>out, kept.size)
        return Kept(kept_records, kept.count, kept.max_timestamp, bool(kept.has_tombstone))

    def filter_batches(self, data, Py_ssize_t position, Py_ssize_t end, rules, out):
        cdef View view = View(data)
        cdef const uint8_t *at
        cdef uint8_t *made
        cdef Py_ssize_t size
        cdef int64_t now_ms = rules.now_ms
        cdef int64_t read = 0
        cdef int64_t records_kept = 0
        cdef Py_ssize_t run = -1  # consecutive unchanged batches are copied together
        cdef BlockKept kept
        keep_empty = rules.keep_empty
        _check_range(view, position, end)
        while position + HEADER_SIZE <= end:
            at = view.data + position
            size = _ordinary_size(data, at, position, end)
            if size == 0:
                break
            made = self._room(size)
            if self._filter(at, at + HEADER_SIZE, at + size, now_ms, made + HEADER_SIZE, &kept) < 0:
                _refuse(memoryview(data)[position + HEADER_SIZE : position + size], int32_at(at + 57))
            read += int32_at(at + 57)
            records_kept += kept.count
            if kept.count and kept.count == int32_at(at + 57) and not (kept.has_tombstone and not at[22] & DELETE_HORIZON_BIT):
                if run < 0:
                    run = position
                position += size
                continue
            if run >= 0:
                out += memoryview(data)[run:position]
                run = -1
            if kept.has_tombstone and not at[22] & DELETE_HORIZON_BIT:
                out += self._with_horizon(data, position, size, rules)  # rare, so left to the reference
            elif kept.count:
                memcpy(made, at, HEADER_SIZE)
                put_int32(made + 8, <int32_t>(HEADER_SIZE - LOG_OVERHEAD + kept.size))
                if not at[22] & LOG_APPEND_TIME_BIT:
                    put_int64(made + 35, kept.max_timestamp)
                put_int32(made + 57, kept.count)
                _append_sealed(out, made, HEADER_SIZE + kept.size)
            elif int64_at(at) + int32_at(at + 23) in keep_empty:
                out += reference._header_only(read_header(data, position))
            position += size
        if run >= 0:
            out += memoryview(data)[run:position]
        return Filtered(position, read, records_kept)

    def _with_horizon(self, data, Py_ssize_t position, Py_ssize_t size, rules):
        """Filter a batch that needs a delete horizon."""
        return reference.filter_batch(self, memoryview(data)[position : position + size], read_header(data, position), rules)


cdef _append_sealed(out, uint8_t *made, Py_ssize_t size):
    """Set the CRC of a batch and append it to a bytearray."""
    view = PyMemoryView_FromMemory(<char *>made, size, 0x200)  # PyBUF_WRITE
    put_int32(made + CRC_POSITION, <int32_t><uint32_t>crc32c(view[CRC_START:]))
    out += view


cdef Py_ssize_t _ordinary_size(data, const uint8_t *at, Py_ssize_t position, Py_ssize_t end) except -1:
    """Return the size of an ordinary, valid batch, or 0 if the caller must stop."""
    cdef Py_ssize_t size = <Py_ssize_t>int32_at(at + 8) + LOG_OVERHEAD
    if at[16] != MAGIC or size < HEADER_SIZE:
        read_header(data, position)  # raises
    if ((at[21] << 8) | at[22]) & EXTRAORDINARY_BITS or position + size > end:
        return 0
    if int32_at(at + 57) < 0 or <uint32_t>int32_at(at + CRC_POSITION) != <uint32_t>crc32c(
        memoryview(data)[position + CRC_START : position + size]
    ):
        verify_crc(data, position, read_header(data, position))  # raises unless the record count is negative
        raise CorruptBatchError(f"invalid record count {int32_at(at + 57)}")
    return size


cdef _check_range(View view, Py_ssize_t position, Py_ssize_t end):
    if not 0 <= position <= end <= view.size:
        raise ValueError(f"bytes {position} to {end} are outside the buffer of {view.size} bytes")


cdef _refuse(records, count):
    """Raise the reference's error for invalid records."""
    for _ in reference._walk(bytes(records), count):
        pass
    raise CorruptBatchError("invalid records, which only the compiled codec detects")
