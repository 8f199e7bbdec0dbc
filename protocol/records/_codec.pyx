# cython: language_level=3, embedsignature=False, binding=False, cdivision=True
"""The compiled version of `record` and `received`, with the same names, results and errors, 20 to 90 times as fast.

These are the reference; tests compare them on valid, invalid and random bytes. Untrusted bytes are parsed by
`_reading.pxi`.

1. A record is parsed completely before an object is created from it; bytes read twice are checked twice.
2. None of the caller's Python code runs between measuring a record and writing it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_Check
from cpython.long cimport PyLong_Check
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport (
    PyTuple_Check,
    PyTuple_CheckExact,
    PyTuple_GET_ITEM,
    PyTuple_GET_SIZE,
    PyTuple_New,
    PyTuple_SET_ITEM,
)
from cpython.unicode cimport PyUnicode_Check, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from warmlog.protocol.records.crc import crc32c

from warmlog.protocol.records import layout, received
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.record import Record, refuse_record, refuse_rest

cdef extern from *:
    """
    #include <string.h>
    /* CRC-32C of a short piece by the processor's own instruction, where there is one. */
    #if defined(__x86_64__) && defined(__GNUC__)
    static int warmlog_counts_crc(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2");
    }
    __attribute__((target("sse4.2")))
    static unsigned int warmlog_short_crc(const unsigned char *at, Py_ssize_t size) {
        unsigned long long crc = 0xFFFFFFFFu, word;
        for (; size >= 8; size -= 8, at += 8) {
            memcpy(&word, at, 8);
            crc = __builtin_ia32_crc32di(crc, word);
        }
        for (; size > 0; size--, at++)
            crc = __builtin_ia32_crc32qi((unsigned int)crc, *at);
        return ~(unsigned int)crc;
    }
    #else
    static int warmlog_counts_crc(void) { return 0; }
    static unsigned int warmlog_short_crc(const unsigned char *at, Py_ssize_t size) { return 0; }
    #endif
    """
    bint counts_crc "warmlog_counts_crc"()
    uint32_t short_crc "warmlog_short_crc"(const uint8_t *at, Py_ssize_t size) nogil

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    object PyType_GenericAlloc(PyTypeObject *kind, Py_ssize_t size)
    const size_t VECTORCALL_FREE_SLOT "PY_VECTORCALL_ARGUMENTS_OFFSET"
    object PyObject_Vectorcall(object function, PyObject **arguments, size_t count, PyObject *names)
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

include "_reading.pxi"

# Equal to record.MAX_FAULTS.
cdef enum:
    MOST_FAULTS = 100
cdef Py_ssize_t MAX_RECORDS_SIZE = reference.MAX_RECORDS_SIZE
cdef int64_t NO_TIMESTAMP = layout.NO_TIMESTAMP
cdef Py_ssize_t HEADER_SIZE = layout.HEADER_SIZE
cdef Py_ssize_t LOG_OVERHEAD = layout.LOG_OVERHEAD
cdef Py_ssize_t CRC_START = layout.CRC_START
cdef int MAGIC = layout.MAGIC
cdef int UNUSUAL_BITS = layout.UNUSUAL_BITS
cdef int TRANSACTIONAL_BIT = layout.TRANSACTIONAL_BIT
cdef Py_ssize_t STAMPED_SIZE = layout.STAMPED_SIZE
cdef Py_ssize_t MAX_COPIED_SIZE = received.MAX_COPIED_SIZE
cdef enum:
    HEADER_FIELDS = 13
assert len(BatchHeader._fields) == HEADER_FIELDS
# Below this size, the call of crc32c costs more than its faster loop saves.
cdef Py_ssize_t SHORT_SIZE = 4096 if counts_crc() else 0
# Decompressed records can be 100 times as large as received; walking them takes milliseconds, so release the GIL.
cdef Py_ssize_t GIL_RELEASE_SIZE = 1 << 20
assert MOST_FAULTS == reference.MAX_FAULTS
# Initial buffer of an encoder: fits a batch of a few small records.
cdef Py_ssize_t FIRST_CAPACITY = 512


# --- reading

cdef inline object bytes_or_none(const uint8_t *start, int32_t length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char *>start, length)


cdef tuple make_headers(Fields *fields, int32_t most):
    """Decode the first headers of a parsed record. They are only invalid if the buffer was modified in the meantime."""
    cdef const uint8_t *position = fields.headers
    cdef const uint8_t *start = NULL
    cdef int32_t length = 0
    cdef int32_t count = min(fields.header_count, most)
    cdef tuple headers = PyTuple_New(count)
    cdef int32_t index
    cdef tuple header
    for index in range(count):
        if read_field(&position, fields.end, &start, &length) != FINE or length < 0:
            raise RuntimeError("the buffer changed while it was read")
        key = PyUnicode_DecodeUTF8(<char *>start, length, "replace")
        if read_field(&position, fields.end, &start, &length) != FINE:
            raise RuntimeError("the buffer changed while it was read")
        header = (key, bytes_or_none(start, length))
        Py_INCREF(header)
        PyTuple_SET_ITEM(headers, index, header)
    return headers


cdef inline int16_t int16_at(const uint8_t *at) noexcept nogil:
    return <int16_t>(<uint16_t>at[0] << 8 | at[1])


cdef inline int32_t int32_at(const uint8_t *at) noexcept nogil:
    return <int32_t>(<uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3])


cdef inline int64_t int64_at(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t><uint32_t>int32_at(at) << 32 | <uint32_t>int32_at(at + 4))


cdef inline void put_big_endian(uint8_t *at, uint64_t number, int size) noexcept nogil:
    cdef int index
    for index in range(size):
        at[index] = <uint8_t>(number >> (8 * (size - 1 - index)))


cdef inline int put_field(tuple header, Py_ssize_t index, int64_t number) except -1:
    field = <object>number
    Py_INCREF(field)
    PyTuple_SET_ITEM(header, index, field)
    return 0


cdef inline bint lies_outside(int64_t timestamp, int64_t earliest, int64_t latest) noexcept nogil:
    return (timestamp < earliest or timestamp > latest) and timestamp != NO_TIMESTAMP


def accept_batch(
    buffer,
    bint walk,
    bint release_gil,
    int64_t now=0,
    int64_t before_max=INT64_MAX,
    int64_t after_max=INT64_MAX,
    bint need_keys=False,
):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if is_acceptable(buffer, &view, walk, release_gil, now, before_max, after_max, need_keys):
            return header_of(<const uint8_t *>view.buf)
        return None
    finally:
        PyBuffer_Release(&view)


def accept_stamped(
    buffer,
    int64_t base_offset,
    int32_t leader_epoch,
    bint walk,
    bint release_gil,
    int64_t now,
    int64_t before_max,
    int64_t after_max,
    bint need_keys,
):
    cdef Py_buffer view
    cdef const uint8_t *at
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *>view.buf
        if view.len < HEADER_SIZE or int64_at(at) or base_offset > INT64_MAX - INT32_MAX:
            return None
        if not is_acceptable(buffer, &view, walk, release_gil, now, before_max, after_max, need_keys):
            return None
        buffers = stamped(buffer, at, 0, view.len, base_offset, leader_epoch)
        header = header_of(at) if int64_at(at + 43) >= 0 else None
        return buffers, base_offset + int32_at(at + 23), int64_at(at + 35), header
    finally:
        PyBuffer_Release(&view)


cdef bint is_acceptable(
    object buffer,
    Py_buffer *view,
    bint walk,
    bint release_gil,
    int64_t now,
    int64_t before_max,
    int64_t after_max,
    bint need_keys,
) except -1:
    cdef const uint8_t *at = <const uint8_t *>view.buf
    cdef Py_ssize_t size = view.len
    if size < HEADER_SIZE or int32_at(at + 8) != size - LOG_OVERHEAD or at[16] != MAGIC:
        return False
    cdef int16_t attributes = int16_at(at + 21)
    cdef int32_t last_delta = int32_at(at + 23), count = int32_at(at + 57), sequence = int32_at(at + 53)
    cdef int64_t base_time = int64_at(at + 27), max_time = int64_at(at + 35), producer_id = int64_at(at + 43)
    cdef int16_t epoch = int16_at(at + 51)
    if attributes & UNUSUAL_BITS or count < 1 or count - 1 != last_delta or max_time < NO_TIMESTAMP:
        return False
    if count > (size - HEADER_SIZE) // MIN_RECORD_SIZE or (producer_id >= 0 and (sequence < 0 or epoch < 0)):
        return False
    cdef int64_t earliest = INT64_MIN, latest = INT64_MAX
    if subtract_overflows(now, before_max, &earliest) or before_max == INT64_MAX:
        earliest = INT64_MIN
    if add_overflows(now, after_max, &latest):
        latest = INT64_MAX
    if lies_outside(base_time, earliest, latest) or lies_outside(max_time, earliest, latest) or max_time < base_time:
        return False
    cdef uint32_t found_crc
    if size <= SHORT_SIZE:
        found_crc = short_crc(at + CRC_START, size - CRC_START)
    else:
        found_crc = crc32c(buffer[CRC_START:], 0, release_gil)
    if found_crc != <uint32_t>int32_at(at + 17):
        return False
    if not walk:
        return True
    cdef const uint8_t *position = at + HEADER_SIZE
    cdef const uint8_t *end = at + size
    cdef Fields fields
    cdef int32_t index
    cdef int64_t timestamp = 0, largest = NO_TIMESTAMP
    for index in range(count):
        if read_record(position, end, &fields) != FINE or fields.offset_delta != index:
            return False
        if add_overflows(base_time, fields.timestamp_delta, &timestamp):
            return False
        if (timestamp < earliest and timestamp != NO_TIMESTAMP) or (need_keys and fields.key_length < 0):
            return False
        if timestamp > largest:
            largest = timestamp
        position = fields.end
    return position == end and largest == max_time  # max_time was compared with `latest` above


cdef tuple header_of(const uint8_t *at):
    cdef tuple header = <tuple>PyType_GenericAlloc(<PyTypeObject *>BatchHeader, HEADER_FIELDS)
    put_field(header, 0, int64_at(at))
    put_field(header, 1, int32_at(at + 8))
    put_field(header, 2, int32_at(at + 12))
    put_field(header, 3, at[16])
    put_field(header, 4, <uint32_t>int32_at(at + 17))
    put_field(header, 5, int16_at(at + 21))
    put_field(header, 6, int32_at(at + 23))
    put_field(header, 7, int64_at(at + 27))
    put_field(header, 8, int64_at(at + 35))
    put_field(header, 9, int64_at(at + 43))
    put_field(header, 10, int16_at(at + 51))
    put_field(header, 11, int32_at(at + 53))
    put_field(header, 12, int32_at(at + 57))
    return header


cdef inline bint is_plain(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    if size < HEADER_SIZE or at[16] != MAGIC or int32_at(at + 8) != size - LOG_OVERHEAD:
        return False
    return not int16_at(at + 21) & (UNUSUAL_BITS | TRANSACTIONAL_BIT)


def plain_batch_producer(records):
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef object producer_id = None
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    at = <const uint8_t *>view.buf
    if is_plain(at, view.len):
        producer_id = int64_at(at + 43)
    PyBuffer_Release(&view)
    return producer_id


def stamped_batch(records, Py_ssize_t start, Py_ssize_t end, int64_t base_offset, int32_t leader_epoch):
    cdef Py_buffer view
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len or end - HEADER_SIZE < start:
            raise ValueError(f"no batch in bytes {start} to {end} of {view.len}")
        return stamped(records, <const uint8_t *>view.buf, start, end, base_offset, leader_epoch)
    finally:
        PyBuffer_Release(&view)


cdef tuple stamped(
    object records, const uint8_t *at, Py_ssize_t start, Py_ssize_t end, int64_t base_offset, int32_t leader_epoch
):
    cdef bint is_copied = end - start <= MAX_COPIED_SIZE
    cdef bytes stamp = PyBytes_FromStringAndSize(<const char *>at + start, end - start if is_copied else STAMPED_SIZE)
    cdef uint8_t *first = <uint8_t *>PyBytes_AS_STRING(stamp)
    put_big_endian(first, <uint64_t>base_offset, 8)
    put_big_endian(first + 12, <uint64_t>leader_epoch, 4)
    return (stamp,) if is_copied else (stamp, records[start + STAMPED_SIZE : end])


cdef struct Fault:
    Py_ssize_t index
    int64_t timestamp
    bint has_key


cdef struct Scan:
    int64_t largest
    Py_ssize_t fault_count
    Fault faults[MOST_FAULTS]
    # Where and why the scan stopped: at an invalid record, or after the last one.
    Py_ssize_t index
    int reason
    const uint8_t *position


cdef void scan(
    Scan *result,
    const uint8_t *position,
    const uint8_t *end,
    Py_ssize_t count,
    int64_t base_timestamp,
    int64_t earliest,
    int64_t latest,
    bint need_keys,
) noexcept nogil:
    cdef Fields fields
    cdef int64_t timestamp = 0
    cdef bint has_key
    result.largest = NO_TIMESTAMP
    result.fault_count = 0
    result.reason = FINE
    for result.index in range(count):
        result.reason = read_record(position, end, &fields)
        if result.reason == FINE and fields.offset_delta != result.index:
            result.reason = BAD_DELTA
        if result.reason == FINE and add_overflows(base_timestamp, fields.timestamp_delta, &timestamp):
            result.reason = OUT_OF_RANGE
        if result.reason != FINE:
            break
        has_key = not need_keys or fields.key_length >= 0
        if not has_key or lies_outside(timestamp, earliest, latest):
            if result.fault_count < MOST_FAULTS:
                result.faults[result.fault_count] = Fault(result.index, timestamp, has_key)
                result.fault_count += 1
        if timestamp > result.largest:
            result.largest = timestamp
        position = fields.end
    result.position = position


def scan_records(
    buffer,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_timestamp,
    int64_t earliest=INT64_MIN,
    int64_t latest=INT64_MAX,
    bint need_keys=False,
):
    cdef View view = view_records(buffer, start, end, count)
    cdef const uint8_t *first = view.start
    cdef const uint8_t *last = view.end
    cdef Scan result
    if end - start > GIL_RELEASE_SIZE:
        with nogil:
            scan(&result, first, last, count, base_timestamp, earliest, latest, need_keys)
    else:
        scan(&result, first, last, count, base_timestamp, earliest, latest, need_keys)
    if result.reason != FINE:
        refuse_record(result.index, count, result.reason)
    if result.position != last:
        refuse_rest(last - result.position, count)
    cdef list faults = []
    cdef Py_ssize_t index
    for index in range(result.fault_count):
        fault = result.faults[index]
        faults.append((fault.index, fault.timestamp if fault.has_key else None))
    return result.largest, faults


def walk_records(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count):
    cdef View view = view_records(buffer, start, end, count)
    cdef const uint8_t *position = view.start
    cdef Fields fields
    cdef Py_ssize_t index
    cdef int reason
    for index in range(count):
        reason = read_record(position, view.end, &fields)
        if reason == FINE and fields.offset_delta != index:
            reason = BAD_DELTA
        if reason != FINE:
            refuse_record(index, count, reason)
        position = fields.end
    if position != view.end:
        refuse_rest(view.end - position, count)


def decode_records(
    buffer,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    append_time=None,
    make=Record,
    tuple prefix=(),
    int32_t max_headers=INT32_MAX,
):
    cdef View view = view_records(buffer, start, end, count)
    cdef const uint8_t *position = view.start
    cdef Fields fields
    cdef list records = []
    cdef Py_ssize_t index
    cdef Py_ssize_t given = PyTuple_GET_SIZE(prefix)
    cdef int64_t offset = 0
    cdef int64_t timestamp = 0
    cdef int64_t last_timestamp = 0
    cdef object time = append_time
    cdef bint own_times = append_time is None
    # The number of arguments, with the flag that the slot before them may be overwritten.
    cdef size_t shape = <size_t>(given + 5) | VECTORCALL_FREE_SLOT
    cdef int reason
    # Five arguments after the prefix, and one slot before them for vectorcall.
    cdef PyObject **slots = <PyObject **>PyMem_Malloc((given + 6) * sizeof(PyObject *))
    cdef PyObject **arguments = slots + 1
    if slots == NULL:
        raise MemoryError
    try:
        for index in range(given):
            arguments[index] = <PyObject *>PyTuple_GET_ITEM(prefix, index)
        for index in range(count):
            reason = read_record(position, view.end, &fields)
            if reason == FINE and add_overflows(base_offset, fields.offset_delta, &offset):
                reason = OUT_OF_RANGE
            if reason == FINE and own_times and add_overflows(base_timestamp, fields.timestamp_delta, &timestamp):
                reason = OUT_OF_RANGE
            if reason != FINE:
                refuse_record(index, count, reason)
            # Consecutive records often have the same timestamp: reuse the int object.
            if own_times and (timestamp != last_timestamp or time is None):
                time = timestamp
                last_timestamp = timestamp
            number = <object>offset
            key = bytes_or_none(fields.key, fields.key_length)
            value = bytes_or_none(fields.value, fields.value_length)
            headers = make_headers(&fields, max_headers) if fields.header_count else ()
            arguments[given] = <PyObject *>number
            arguments[given + 1] = <PyObject *>time
            arguments[given + 2] = <PyObject *>key
            arguments[given + 3] = <PyObject *>value
            arguments[given + 4] = <PyObject *>headers
            records.append(PyObject_Vectorcall(make, arguments, shape, NULL))
            position = fields.end
    finally:
        PyMem_Free(slots)
    if position != view.end:
        refuse_rest(view.end - position, count)
    return records


# --- writing

cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)


cdef inline Py_ssize_t varint_size(int64_t number) noexcept nogil:
    cdef uint64_t bits = zigzag(number)
    cdef Py_ssize_t size = 1
    while bits >= 0x80:
        bits >>= 7
        size += 1
    return size


cdef inline uint8_t *write_varint(uint8_t *position, int64_t number) noexcept nogil:
    cdef uint64_t bits = zigzag(number)
    while bits >= 0x80:
        position[0] = <uint8_t>(bits | 0x80)
        position += 1
        bits >>= 7
    position[0] = <uint8_t>bits
    return position + 1


cdef inline uint8_t *write_field(uint8_t *position, const char *start, Py_ssize_t length) noexcept nogil:
    """Write a length and that many bytes, or -1 for NULL."""
    if start == NULL:
        return write_varint(position, -1)
    position = write_varint(position, length)
    memcpy(position, start, length)
    return position + length


cdef inline Py_ssize_t field_size(object data, str what) except -1:
    if data is None:
        return 1
    if not PyBytes_Check(data):
        raise TypeError(f"{what} must be bytes or None, not {type(data).__name__}")
    return varint_size(PyBytes_GET_SIZE(data)) + PyBytes_GET_SIZE(data)


cdef inline uint8_t *write_object(uint8_t *position, object data):
    if data is None:
        return write_field(position, NULL, 0)
    return write_field(position, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline tuple snapshot(object headers):
    """Return the headers as an exact tuple, which no subclass can change between measuring and writing."""
    if PyTuple_CheckExact(headers):
        return headers
    if not (PyTuple_Check(headers) or PyList_Check(headers)):
        raise TypeError(f"headers must be a tuple or list, not {type(headers).__name__}")
    return tuple(headers)


cdef Py_ssize_t headers_size(tuple headers) except -1:
    cdef Py_ssize_t size = varint_size(len(headers))
    cdef Py_ssize_t key_size = 0
    for header in headers:
        if not (PyTuple_Check(header) and PyTuple_GET_SIZE(header) == 2):
            raise TypeError("each header must be a tuple of str and bytes or None")
        if not PyUnicode_Check(<object>PyTuple_GET_ITEM(header, 0)):
            raise TypeError("each header must be a tuple of str and bytes or None")
        PyUnicode_AsUTF8AndSize(<object>PyTuple_GET_ITEM(header, 0), &key_size)
        size += varint_size(key_size) + key_size + field_size(<object>PyTuple_GET_ITEM(header, 1), "header value")
    return size


cdef uint8_t *write_headers(uint8_t *position, tuple headers) except NULL:
    cdef Py_ssize_t key_size = 0
    cdef const char *key
    position = write_varint(position, len(headers))
    for header in headers:
        key = PyUnicode_AsUTF8AndSize(<object>PyTuple_GET_ITEM(header, 0), &key_size)
        position = write_field(position, key, key_size)
        position = write_object(position, <object>PyTuple_GET_ITEM(header, 1))
    return position


cdef class RecordEncoder:
    cdef uint8_t *buffer
    cdef Py_ssize_t capacity
    cdef readonly Py_ssize_t records_size
    cdef readonly Py_ssize_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp

    def __cinit__(self):
        self.clear()

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    cpdef clear(self):
        """Remove all records."""
        self.records_size = 0
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    def append(self, key, value, timestamp, headers=()):
        self.add(key, value, timestamp, headers)
        return self.records_size

    def extend(self, rows):
        for row in rows:
            if not (PyTuple_Check(row) and PyTuple_GET_SIZE(row) == 4):
                raise TypeError("each row must be a tuple (timestamp, key, value, headers)")
            self.add(
                <object>PyTuple_GET_ITEM(row, 1),
                <object>PyTuple_GET_ITEM(row, 2),
                <object>PyTuple_GET_ITEM(row, 0),
                <object>PyTuple_GET_ITEM(row, 3),
            )
        return self.records_size

    def records(self):
        return PyBytes_FromStringAndSize(<char *>self.buffer, self.records_size)

    cdef int reserve(self, Py_ssize_t size) except -1:
        """Ensure capacity for `size` more bytes; doubles the buffer so that appending stays linear."""
        cdef Py_ssize_t capacity = max(self.capacity * 2, self.records_size + size, FIRST_CAPACITY)
        cdef uint8_t *buffer = <uint8_t *>PyMem_Realloc(self.buffer, capacity)
        if buffer == NULL:
            raise MemoryError
        self.buffer = buffer
        self.capacity = capacity
        return 0

    cdef int add(self, object key, object value, object timestamp, object headers) except -1:
        cdef int overflow = 0
        cdef int64_t time
        cdef int64_t delta = 0
        cdef Py_ssize_t body
        cdef Py_ssize_t size
        cdef uint8_t *position
        if not PyLong_Check(timestamp):
            raise TypeError(f"timestamp must be an int, not {type(timestamp).__name__}")
        time = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
        if overflow or time < -1 or (self.count and subtract_overflows(time, self.base_timestamp, &delta)):
            raise ValueError(f"timestamp must be -1 or milliseconds since the epoch, not {timestamp}")
        body = 1 + varint_size(delta) + varint_size(self.count)
        body += field_size(key, "key") + field_size(value, "value")
        if not headers:
            headers = None
            body += 1
        else:
            headers = snapshot(headers)
            body += headers_size(headers)
        size = varint_size(body) + body
        if self.records_size + size > MAX_RECORDS_SIZE:
            raise ValueError(f"the records of one batch exceed {MAX_RECORDS_SIZE} bytes")
        if self.records_size + size > self.capacity:
            self.reserve(size)
        position = write_varint(self.buffer + self.records_size, body)
        position[0] = 0
        position = write_varint(position + 1, delta)
        position = write_varint(position, self.count)
        position = write_object(position, key)
        position = write_object(position, value)
        position = write_varint(position, 0) if headers is None else write_headers(position, <tuple>headers)
        if self.count == 0:
            self.base_timestamp = time
        self.records_size += size
        self.count += 1
        self.max_timestamp = max(self.max_timestamp, time)
        return 0


# --- hashing

cpdef int32_t murmur2(data) except? -1:
    cdef Py_buffer view
    cdef int32_t digest
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    digest = <int32_t>murmur2_of(<const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return digest


def java_hash(str text not None):
    cdef uint32_t digest = 0
    cdef uint32_t unit
    for unit in text:
        if unit > 0xFFFF:
            digest = digest * 31 + 0xD800 + (unit - 0x10000 >> 10)
            unit = 0xDC00 + (unit & 0x3FF)
        digest = digest * 31 + unit
    return <int32_t>digest


def rows_by_partition(rows, Py_ssize_t partitions):
    cdef Py_ssize_t number
    cdef list by_partition
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    by_partition = [[] for _ in range(partitions + 1)]
    for row in rows:
        if not (PyTuple_Check(row) and PyTuple_GET_SIZE(row) == 4):
            raise TypeError("each row must be a tuple (timestamp, key, value, headers)")
        key = <object>PyTuple_GET_ITEM(row, 1)
        number = partitions if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions
        (<list>by_partition[number]).append(row)
    return by_partition


cdef uint32_t murmur2_of(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t digest = <uint32_t>0x9747B28C ^ <uint32_t>length
    cdef uint32_t word
    while length >= 4:
        word = <uint32_t>data[0] | <uint32_t>data[1] << 8 | <uint32_t>data[2] << 16 | <uint32_t>data[3] << 24
        word *= m
        word ^= word >> 24
        word *= m
        digest *= m
        digest ^= word
        data += 4
        length -= 4
    if length >= 3:
        digest ^= <uint32_t>data[2] << 16
    if length >= 2:
        digest ^= <uint32_t>data[1] << 8
    if length >= 1:
        digest ^= <uint32_t>data[0]
        digest *= m
    digest ^= digest >> 13
    digest *= m
    digest ^= digest >> 15
    return digest
