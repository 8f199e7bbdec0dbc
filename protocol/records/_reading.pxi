# The record parser included by `_codec` and `_columns`. Its input is untrusted:
#
# 1. A pointer is compared with the end before it is dereferenced, a length with the remaining bytes before it is added.
# 2. Numbers are read as unsigned and checked for surplus bits; additions are checked for overflow.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from warmlog.protocol.records import record as reference
from warmlog.protocol.records.record import refuse_count, refuse_range

cdef extern from *:
    """
    #define warmlog_add_overflows(a, b, sum) __builtin_add_overflow((a), (b), (sum))
    #define warmlog_subtract_overflows(a, b, difference) __builtin_sub_overflow((a), (b), (difference))
    """
    bint add_overflows "warmlog_add_overflows"(int64_t a, int64_t b, int64_t *sum) nogil
    bint subtract_overflows "warmlog_subtract_overflows"(int64_t a, int64_t b, int64_t *difference) nogil

# Indexes into record.REASONS as C integers; FINE for a valid record.
cdef enum:
    FINE = -1
cdef int CUT = reference.CUT
cdef int TOO_MANY_BYTES = reference.TOO_MANY_BYTES
cdef int BAD_LENGTH = reference.BAD_LENGTH
cdef int BAD_FIELD_LENGTH = reference.BAD_FIELD_LENGTH
cdef int BAD_HEADER_COUNT = reference.BAD_HEADER_COUNT
cdef int LEFT_OVER = reference.LEFT_OVER
cdef int OUT_OF_RANGE = reference.OUT_OF_RANGE
cdef int BAD_DELTA = reference.BAD_DELTA
cdef Py_ssize_t MIN_RECORD_SIZE = reference.MIN_RECORD_SIZE
cdef Py_ssize_t MIN_HEADER_SIZE = reference.MIN_HEADER_SIZE


cdef struct Fields:
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_length
    int32_t value_length
    int32_t header_count
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers
    const uint8_t *end


cdef int read_long_varint(const uint8_t **position, const uint8_t *end, int32_t *number) noexcept nogil:
    cdef const uint8_t *at = position[0]
    cdef uint32_t bits = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        if at >= end:
            return CUT
        byte = at[0]
        at += 1
        if shift == 28 and byte > 0x0F:
            return TOO_MANY_BYTES
        bits |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    position[0] = at
    number[0] = <int32_t>((bits >> 1) ^ (0 - (bits & 1)))
    return FINE


cdef inline int read_varint(const uint8_t **position, const uint8_t *end, int32_t *number) noexcept nogil:
    """Read a varint; one or two bytes, the usual case, are read inline."""
    cdef const uint8_t *at = position[0]
    cdef uint32_t bits
    if end - at < 2:
        return read_long_varint(position, end, number)
    if at[0] < 0x80:
        bits = at[0]
        position[0] = at + 1
    elif at[1] < 0x80:
        bits = (at[0] & 0x7F) | <uint32_t>at[1] << 7
        position[0] = at + 2
    else:
        return read_long_varint(position, end, number)
    number[0] = <int32_t>((bits >> 1) ^ (0 - (bits & 1)))
    return FINE


cdef int read_long_varlong(const uint8_t **position, const uint8_t *end, int64_t *number) noexcept nogil:
    cdef const uint8_t *at = position[0]
    cdef uint64_t bits = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        if at >= end:
            return CUT
        byte = at[0]
        at += 1
        if shift == 63 and byte > 1:
            return TOO_MANY_BYTES
        bits |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    position[0] = at
    number[0] = <int64_t>((bits >> 1) ^ (0 - (bits & 1)))
    return FINE


cdef inline int read_varlong(const uint8_t **position, const uint8_t *end, int64_t *number) noexcept nogil:
    """Read a varlong; timestamp deltas within a batch are small, so one or two bytes are read inline."""
    cdef const uint8_t *at = position[0]
    cdef uint64_t bits
    if end - at < 2:
        return read_long_varlong(position, end, number)
    if at[0] < 0x80:
        bits = at[0]
        position[0] = at + 1
    elif at[1] < 0x80:
        bits = (at[0] & 0x7F) | <uint64_t>at[1] << 7
        position[0] = at + 2
    else:
        return read_long_varlong(position, end, number)
    number[0] = <int64_t>((bits >> 1) ^ (0 - (bits & 1)))
    return FINE


cdef inline int read_field(
    const uint8_t **position, const uint8_t *end, const uint8_t **start, int32_t *length
) noexcept nogil:
    """Read a length of at least -1 and skip that many bytes."""
    cdef int reason = read_varint(position, end, length)
    if reason != FINE:
        return reason
    if length[0] < -1 or length[0] > end - position[0]:
        return BAD_FIELD_LENGTH
    start[0] = position[0]
    if length[0] > 0:
        position[0] += length[0]
    return FINE


cdef int check_headers(const uint8_t **position, const uint8_t *end, int32_t count) noexcept nogil:
    cdef const uint8_t *start
    cdef int32_t length
    cdef int32_t index
    cdef int reason
    for index in range(count):
        reason = read_field(position, end, &start, &length)
        if reason != FINE:
            return reason
        if length < 0:
            return BAD_FIELD_LENGTH
        reason = read_field(position, end, &start, &length)
        if reason != FINE:
            return reason
    return FINE


cdef inline int read_record(const uint8_t *position, const uint8_t *end, Fields *fields) noexcept nogil:
    """Parse the record at `position`; return FINE or the reason why it is invalid."""
    cdef int32_t length
    cdef int reason = read_varint(&position, end, &length)
    if reason != FINE:
        return reason
    if length < MIN_RECORD_SIZE - 1 or length > end - position:
        return BAD_LENGTH
    end = position + length
    fields.end = end
    position += 1
    reason = read_varlong(&position, end, &fields.timestamp_delta)
    if reason != FINE:
        return reason
    reason = read_varint(&position, end, &fields.offset_delta)
    if reason != FINE:
        return reason
    reason = read_field(&position, end, &fields.key, &fields.key_length)
    if reason != FINE:
        return reason
    reason = read_field(&position, end, &fields.value, &fields.value_length)
    if reason != FINE:
        return reason
    reason = read_varint(&position, end, &fields.header_count)
    if reason != FINE:
        return reason
    fields.headers = position
    if fields.header_count != 0:
        if fields.header_count < 0 or fields.header_count > (end - position) // MIN_HEADER_SIZE:
            return BAD_HEADER_COUNT
        reason = check_headers(&position, end, fields.header_count)
        if reason != FINE:
            return reason
    return FINE if position == end else LEFT_OVER


cdef class View:
    """A validated range of a buffer, which it holds while it exists."""

    cdef Py_buffer buffer
    cdef const uint8_t *start
    cdef const uint8_t *end
    cdef bint held

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef View view_records(object buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count):
    cdef View view = View.__new__(View)
    PyObject_GetBuffer(buffer, &view.buffer, PyBUF_SIMPLE)
    view.held = True
    if not 0 <= start <= end <= view.buffer.len:
        refuse_range(start, end, view.buffer.len)
    if not 0 <= count <= (end - start) // MIN_RECORD_SIZE:
        refuse_count(count, end - start)
    view.start = <const uint8_t *>view.buffer.buf + start
    view.end = <const uint8_t *>view.buffer.buf + end
    return view
