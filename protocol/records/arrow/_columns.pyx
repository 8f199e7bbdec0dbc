# cython: language_level=3, embedsignature=False, binding=False, cdivision=True
"""The compiled version of `columns.ColumnBuilder`, with the same results and errors, without an object per record.

Untrusted bytes are parsed by `_reading.pxi`. Memory is reserved before it is written:

1. Keys and values of a batch are no longer than the batch, so that much is reserved before its first record is parsed.
   Memory for headers is reserved one by one.
2. Sizes are updated only after the whole batch was parsed, so an invalid batch adds nothing.
3. The GIL is released while a batch is parsed, and taken only for header keys that are not valid UTF-8.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from warmlog.protocol.records.arrow import columns
from warmlog.protocol.records.arrow.columns import EVERYTHING, BytesColumn, Columns, HeaderColumn
from warmlog.protocol.records.record import refuse_record, refuse_rest

include "../_reading.pxi"

# In addition to the reasons of `_reading.pxi`: failures that are not caused by a record.
cdef enum:
    NO_MEMORY = -2
    TOO_LARGE = -3
    FAILED = -4
cdef int64_t MICROSECONDS = columns.MICROSECONDS
cdef int64_t MAX_TIMESTAMP_MS = columns.MAX_TIMESTAMP_MS
cdef int64_t MIN_TIMESTAMP_MS = columns.MIN_TIMESTAMP_MS
# Initial capacity: fits the numbers of a small batch.
cdef Py_ssize_t FIRST_CAPACITY = 1024


# --- memory

cdef struct Grown:
    uint8_t *start
    Py_ssize_t size
    Py_ssize_t capacity


cdef int reserve(Grown *memory, Py_ssize_t more) noexcept nogil:
    """Ensure capacity for `more` bytes."""
    cdef Py_ssize_t needed = memory.size + more
    cdef Py_ssize_t capacity = memory.capacity if memory.capacity else FIRST_CAPACITY
    cdef uint8_t *start
    if needed <= memory.capacity:
        return FINE
    while capacity < needed:
        capacity *= 2
    start = <uint8_t *>realloc(memory.start, capacity)
    if start == NULL:
        return NO_MEMORY
    memory.start = start
    memory.capacity = capacity
    return FINE


cdef class Memory:
    """An immutable buffer, freed with its last reference."""

    cdef uint8_t *start
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.start)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.size, 1, flags)

    def __len__(self):
        return self.size


cdef object handed_over(Grown *memory):
    """Return the written bytes as an object and empty `memory`, freeing unused capacity."""
    cdef Memory given = Memory.__new__(Memory)
    cdef uint8_t *start
    if memory.size == 0:
        return b""
    start = <uint8_t *>realloc(memory.start, memory.size)
    given.start = memory.start if start == NULL else start
    given.size = memory.size
    memory.start = NULL
    memory.size = memory.capacity = 0
    return given


# --- columns of bytes

cdef struct Values:
    # Validity bits, int32 offsets, data. The first offset, 0, is written with the first value.
    Grown validity
    Grown offsets
    Grown data
    Py_ssize_t count
    Py_ssize_t null_count


cdef int reserve_values(Values *values, Py_ssize_t count, Py_ssize_t size) noexcept nogil:
    """Ensure capacity for `count` more values of `size` bytes in total."""
    # Bits occupy whole bytes, the last of which may be in use already.
    if reserve(&values.validity, count // 8 + 2) != FINE or reserve(&values.data, size) != FINE:
        return NO_MEMORY
    return reserve(&values.offsets, (count + 1) * 4)


cdef inline void put_validity(Values *values, bint valid) noexcept nogil:
    cdef Py_ssize_t index = values.count
    cdef uint8_t *byte = values.validity.start + (index >> 3)
    cdef uint8_t bit = <uint8_t>(1 << (index & 7))
    if index & 7 == 0:
        byte[0] = 0
        values.validity.size = (index >> 3) + 1
    # Set or clear the bit: a rejected batch may have written it.
    byte[0] = (byte[0] | bit) if valid else (byte[0] & ~bit)


cdef inline void put_end(Values *values, int32_t end) noexcept nogil:
    if values.count == 0:
        (<int32_t *>values.offsets.start)[0] = 0
        values.offsets.size = 4
    (<int32_t *>(values.offsets.start + values.offsets.size))[0] = end
    values.offsets.size += 4
    values.count += 1


cdef inline void put_value(Values *values, const uint8_t *start, int32_t length) noexcept nogil:
    put_validity(values, length >= 0)
    if length > 0:
        memcpy(values.data.start + values.data.size, start, length)
        values.data.size += length
    elif length < 0:
        values.null_count += 1
    put_end(values, <int32_t>values.data.size)


cdef void put_back(Values *values, Values *before) noexcept nogil:
    """Restore the sizes after a rejected batch; the memory may have been reallocated and is kept."""
    values.validity.size = before.validity.size
    values.offsets.size = before.offsets.size
    values.data.size = before.data.size
    values.count = before.count
    values.null_count = before.null_count


cdef void free_values(Values *values) noexcept nogil:
    free(values.validity.start)
    free(values.offsets.start)
    free(values.data.start)


cdef tuple hand_over_layout(Values *values):
    """Return (count, null count, validity, offsets); the data is taken separately."""
    if values.count == 0:
        return 0, 0, None, bytes(4)
    cdef Py_ssize_t count = values.count
    cdef Py_ssize_t null_count = values.null_count
    cdef int used = count & 7
    if used:  # clear what a rejected batch wrote after the last bit
        values.validity.start[values.validity.size - 1] &= <uint8_t>((1 << used) - 1)
    validity = handed_over(&values.validity) if null_count else None
    values.validity.size = 0
    return count, null_count, validity, handed_over(&values.offsets)


cdef object hand_over(Values *values):
    layout = hand_over_layout(values)
    data = handed_over(&values.data)
    values.count = values.null_count = 0
    return BytesColumn(*layout, data)


# --- text

cdef inline bint is_ascii(const uint8_t *start, int32_t length) noexcept nogil:
    cdef int32_t index
    cdef uint8_t bits = 0
    for index in range(length):
        bits |= start[index]
    return bits < 0x80


cdef int put_text(Values *keys, const uint8_t *start, int32_t length) noexcept nogil:
    """Append a header key: unchanged if it is valid UTF-8, otherwise with replacement characters as in `columns`."""
    cdef int done
    if is_ascii(start, length):
        if reserve_values(keys, 1, length) != FINE:
            return NO_MEMORY
        put_value(keys, start, length)
        return FINE
    with gil:
        try:
            done = put_decoded(keys, start, length)
        except MemoryError:
            return NO_MEMORY
        return done


cdef int put_decoded(Values *keys, const uint8_t *start, int32_t length) except? FAILED:
    cdef bytes text = PyUnicode_DecodeUTF8(<char *>start, length, "replace").encode()
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    if size + keys.data.size > INT32_MAX:
        return TOO_LARGE
    if reserve_values(keys, 1, size) != FINE:
        return NO_MEMORY
    put_value(keys, <const uint8_t *>PyBytes_AS_STRING(text), <int32_t>size)
    return FINE


# --- the builder

cdef struct Selection:
    int64_t first_offset
    int64_t last_offset
    int64_t first_ms
    int64_t last_ms


cdef class ColumnBuilder:
    cdef Grown offsets
    cdef Grown timestamps
    cdef Grown timestamp_types
    cdef Values keys
    cdef Values values
    # One list per record; its items are the two columns below.
    cdef Values headers
    cdef Values header_keys
    cdef Values header_values
    cdef bint with_keys
    cdef bint with_values
    cdef bint with_headers
    cdef readonly Py_ssize_t count

    def __cinit__(self, *, bint keys=True, bint values=True, bint headers=False):
        self.with_keys = keys
        self.with_values = values
        self.with_headers = headers

    def __dealloc__(self):
        free(self.offsets.start)
        free(self.timestamps.start)
        free(self.timestamp_types.start)
        free_values(&self.keys)
        free_values(&self.values)
        free_values(&self.headers)
        free_values(&self.header_keys)
        free_values(&self.header_values)

    @property
    def size(self):
        return self.data_size()

    cdef Py_ssize_t data_size(self) noexcept nogil:
        return (
            self.keys.data.size + self.values.data.size + self.header_keys.data.size + self.header_values.data.size
        )

    def add(
        self,
        buffer,
        Py_ssize_t start,
        Py_ssize_t end,
        Py_ssize_t count,
        int64_t base_offset,
        int64_t base_timestamp,
        append_time=None,
        wanted=EVERYTHING,
    ):
        if self.data_size() + end - start > INT32_MAX:
            raise ValueError("the columns would exceed 2 GiB; call take() first")
        cdef View view = view_records(buffer, start, end, count)
        cdef Selection selection = Selection(wanted[0], wanted[1], wanted[2], wanted[3])
        cdef bint appended = append_time is not None
        cdef int64_t time = append_time if appended else base_timestamp
        cdef const uint8_t *position = view.start
        cdef const uint8_t *last = view.end
        cdef Py_ssize_t before = self.count
        cdef Values keys = self.keys, values = self.values, headers = self.headers
        cdef Values header_keys = self.header_keys, header_values = self.header_values
        cdef Py_ssize_t index = 0
        cdef int reason
        with nogil:
            reason = self.reserve_all(count, last - position)
            if reason == FINE:
                reason = self.read(&position, last, count, base_offset, time, appended, &selection, &index)
            if reason == FINE and self.data_size() > INT32_MAX:
                reason = TOO_LARGE
            if reason != FINE or position != last:
                self.count = before
                self.cut_numbers()
                put_back(&self.keys, &keys)
                put_back(&self.values, &values)
                put_back(&self.headers, &headers)
                put_back(&self.header_keys, &header_keys)
                put_back(&self.header_values, &header_values)
        if reason == NO_MEMORY:
            raise MemoryError
        if reason == TOO_LARGE:
            raise ValueError("the columns would exceed 2 GiB; call take() first")
        if reason != FINE:
            refuse_record(index, count, reason)
        if position != last:
            refuse_rest(last - position, count)
        return self.count - before

    cdef void cut_numbers(self) noexcept nogil:
        self.offsets.size = self.timestamps.size = self.count * 8
        self.timestamp_types.size = self.count * 4

    cdef int reserve_all(self, Py_ssize_t count, Py_ssize_t size) noexcept nogil:
        if reserve(&self.offsets, count * 8) != FINE or reserve(&self.timestamps, count * 8) != FINE:
            return NO_MEMORY
        if reserve(&self.timestamp_types, count * 4) != FINE:
            return NO_MEMORY
        if self.with_keys and reserve_values(&self.keys, count, size) != FINE:
            return NO_MEMORY
        if self.with_values and reserve_values(&self.values, count, size) != FINE:
            return NO_MEMORY
        if self.with_headers and reserve_values(&self.headers, count, 0) != FINE:
            return NO_MEMORY
        return FINE

    cdef int read(
        self,
        const uint8_t **at,
        const uint8_t *end,
        Py_ssize_t count,
        int64_t base_offset,
        int64_t time,
        bint appended,
        Selection *selection,
        Py_ssize_t *index,
    ) noexcept nogil:
        """Add the records one by one; return FINE, or why the one at `index` is invalid."""
        cdef Fields fields
        cdef int64_t offset = 0
        cdef int64_t timestamp = time
        cdef int reason
        for index[0] in range(count):
            reason = read_record(at[0], end, &fields)
            if reason == FINE and add_overflows(base_offset, fields.offset_delta, &offset):
                reason = OUT_OF_RANGE
            if reason == FINE and not appended and add_overflows(time, fields.timestamp_delta, &timestamp):
                reason = OUT_OF_RANGE
            if reason != FINE:
                return reason
            at[0] = fields.end
            if not (selection.first_offset <= offset <= selection.last_offset):
                continue
            if not (selection.first_ms <= timestamp <= selection.last_ms):
                continue
            reason = self.put(&fields, offset, timestamp, appended)
            if reason != FINE:
                return reason
        return FINE

    cdef inline int put(self, Fields *fields, int64_t offset, int64_t timestamp, bint appended) noexcept nogil:
        timestamp = min(max(timestamp, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS)
        (<int64_t *>self.offsets.start)[self.count] = offset
        (<int64_t *>self.timestamps.start)[self.count] = timestamp * MICROSECONDS
        (<int32_t *>self.timestamp_types.start)[self.count] = appended
        self.count += 1
        self.cut_numbers()
        if self.with_keys:
            put_value(&self.keys, fields.key, fields.key_length)
        if self.with_values:
            put_value(&self.values, fields.value, fields.value_length)
        return self.put_headers(fields) if self.with_headers else FINE

    cdef int put_headers(self, Fields *fields) noexcept nogil:
        cdef const uint8_t *position = fields.headers
        cdef const uint8_t *start = NULL
        cdef int32_t length = 0
        cdef int32_t index
        cdef int reason
        for index in range(fields.header_count):
            # Parsed for the second time; only invalid if the buffer was modified in the meantime.
            reason = read_field(&position, fields.end, &start, &length)
            if reason == FINE and length < 0:
                reason = BAD_FIELD_LENGTH
            if reason == FINE:
                reason = put_text(&self.header_keys, start, length)
            if reason == FINE:
                reason = read_field(&position, fields.end, &start, &length)
            if reason == FINE:
                reason = reserve_values(&self.header_values, 1, max(length, 0))
            if reason != FINE:
                return reason
            put_value(&self.header_values, start, length)
        put_validity(&self.headers, fields.header_count > 0)
        if fields.header_count <= 0:
            self.headers.null_count += 1
        put_end(&self.headers, <int32_t>self.header_keys.count)
        return FINE

    def take(self):
        count = self.count
        self.count = 0
        keys = hand_over(&self.keys) if self.with_keys else None
        values = hand_over(&self.values) if self.with_values else None
        headers = None
        if self.with_headers:
            layout = hand_over_layout(&self.headers)
            self.headers.count = self.headers.null_count = 0
            headers = HeaderColumn(*layout, hand_over(&self.header_keys), hand_over(&self.header_values))
        return Columns(
            count,
            handed_over(&self.offsets),
            handed_over(&self.timestamps),
            handed_over(&self.timestamp_types),
            keys,
            values,
            headers,
        )
