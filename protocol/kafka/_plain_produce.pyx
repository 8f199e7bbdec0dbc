# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of plain_produce.py: the same two functions, with the layout described there.

Invariants:
1. What it gives is what the pure twin gives, for every frame and every response; tests hold both to the same results.
2. No byte outside of a frame is read: each position is checked against the frame's end before it is used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from protocol.kafka.values import IdentifiedRecords, KafkaProduceRequest
from protocol.request import PartitionRecords

cdef enum:
    FIRST = 9
    LAST = 13
    FIRST_WITH_TOPIC_ID = 13
    TOPIC_ID_SIZE = 16
    START_SIZE = 10  # key, version, correlation id, length of the client id
    BODY_SIZE = 9  # tags, transactional id, acks, timeout, topics
    PARTITION_SIZE = 5  # partitions, index
    TAGS_SIZE = 3
    ONE = 2
    CONTINUED = 0x80
    MAX_SHIFT = 28
    REPLY_START_SIZE = 10
    REPLY_END_SIZE = 40


cdef inline int16_t int16_at(const uint8_t *at) noexcept nogil:
    return <int16_t>(<uint16_t>at[0] << 8 | at[1])


cdef inline int32_t int32_at(const uint8_t *at) noexcept nogil:
    return <int32_t>(<uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3])


cdef inline uint8_t *put_int32(uint8_t *at, int32_t value) noexcept nogil:
    cdef int shift
    for shift in range(24, -1, -8):
        at[0] = <uint8_t>(<uint32_t>value >> shift)
        at += 1
    return at


cdef inline uint8_t *put_int64(uint8_t *at, int64_t value) noexcept nogil:
    cdef int shift
    for shift in range(56, -1, -8):
        at[0] = <uint8_t>(<uint64_t>value >> shift)
        at += 1
    return at


def read(frame, names):
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return read_bytes(frame, names, <const uint8_t *>view.buf, view.len)
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)


cdef object read_bytes(object frame, object names, const uint8_t *at, Py_ssize_t size):
    if size < START_SIZE:
        return None
    cdef int16_t version = int16_at(at + 2), client_length = int16_at(at + 8)
    cdef Py_ssize_t body = START_SIZE + client_length, name, name_end, position, end, shift = 7, length
    if not FIRST <= version <= LAST or client_length < 0 or body + BODY_SIZE + 1 > size:
        return None
    cdef int16_t acks = int16_at(at + body + 2)
    cdef int32_t timeout_ms = int32_at(at + body + 4)
    if at[body] or at[body + 1] or at[body + 8] != ONE or not -1 <= acks <= 1 or timeout_ms < 0:
        return None
    name = body + BODY_SIZE
    if version >= FIRST_WITH_TOPIC_ID:
        name_end = name + TOPIC_ID_SIZE
    else:
        if not 1 < at[name] < CONTINUED:
            return None
        name_end = name + at[name]
        name += 1
    position = name_end + PARTITION_SIZE
    end = size - TAGS_SIZE
    if position >= end or at[name_end] != ONE:
        return None
    cdef int32_t index = int32_at(at + name_end + 1)
    # the length of the records, plus one
    length = at[position]
    while length >> shift:
        if shift > MAX_SHIFT:
            return None
        position += 1
        if position >= end:
            return None
        length += (<Py_ssize_t>at[position] - 1) << shift
        shift += 7
    if not length or position + length != end or at[end] or at[end + 1] or at[end + 2]:
        return None
    records = frame[position + 1 : end]
    if version >= FIRST_WITH_TOPIC_ID:
        topic_id = PyBytes_FromStringAndSize(<const char *>at + name, TOPIC_ID_SIZE)
        partition = IdentifiedRecords(topic=names(topic_id) or "", partition=index, records=records, topic_id=topic_id)
    else:
        topic = PyUnicode_DecodeUTF8(<char *>at + name, name_end - name, NULL)
        partition = PartitionRecords(topic=topic, partition=index, records=records)
    client_id = PyUnicode_DecodeUTF8(<char *>at + START_SIZE, client_length, NULL)
    request = KafkaProduceRequest(acks=acks, timeout_ms=timeout_ms, partitions=(partition,))
    return version, int32_at(at + 4), client_id, request


def reply(int version, int32_t correlation_id, request, response):
    partitions = response.partitions
    if len(partitions) != 1:
        return None
    outcome = partitions[0]
    if outcome.error or outcome.message is not None or outcome.record_errors:
        return None
    cdef bytes topic
    cdef Py_ssize_t length
    cdef bint named = version < FIRST_WITH_TOPIC_ID
    if named:
        topic = (<str>outcome.topic).encode()
        length = PyBytes_GET_SIZE(topic) + 1
        if length >= CONTINUED:
            return None
    else:
        topic = request.partitions[0].topic_id
        length = PyBytes_GET_SIZE(topic)
    cdef int32_t index = outcome.partition
    cdef int64_t base_offset = outcome.base_offset, append_time = outcome.log_append_time
    cdef int64_t log_start = outcome.log_start_offset
    cdef Py_ssize_t size = REPLY_START_SIZE + length + REPLY_END_SIZE
    whole = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(whole)
    at = put_int32(at, <int32_t>(size - 4))
    at = put_int32(at, correlation_id)
    at[0] = 0
    at[1] = ONE
    at += 2
    if named:
        at[0] = <uint8_t>length
        at += 1
        length -= 1
    memcpy(at, PyBytes_AS_STRING(topic), length)
    at += length
    at[0] = ONE
    at = put_int32(at + 1, index)
    at[0] = at[1] = 0
    at = put_int64(at + 2, base_offset)
    at = put_int64(at, append_time)
    at = put_int64(at, log_start)
    # no record errors, no message, tags of partition and topic, throttle time, tags
    at[0] = 1
    at[1] = at[2] = at[3] = 0
    at = put_int32(at + 4, 0)
    at[0] = 0
    return whole
