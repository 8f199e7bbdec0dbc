# cython: language_level=3, embedsignature=False, binding=False, cdivision=True
"""Compiled scans over the batches in a piece of a log file, for recovery. They release the GIL.

`walk_sound` is the fast path of `recovery.rebuild.scan_segment`, `producer_batches` that of `producers.replay` and
`producers.trail`. Both stop before a batch that may be damaged, and the Python code continues from there and reports the
damage. `add` makes the same index entries as `append.Tail.add`, which tests compare.

1. A batch length is compared with the bytes left before it is used.
2. CRCs are computed by an instruction of the processor; without one, `AVAILABLE` is False and Python code is used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from warmlog.broker.log.index.mapped import MAX_RELATIVE_OFFSET
from warmlog.broker.log.producers.state import BATCHES_KEPT
from warmlog.protocol.records import layout

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__x86_64__)
      #include <nmmintrin.h>
      #define WARMLOG_CRC __attribute__((target("sse4.2")))
      #define WARMLOG_CRC_8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
      #define WARMLOG_CRC_1(crc, byte) _mm_crc32_u8((crc), (byte))
      static int warmlog_has_crc(void) { return __builtin_cpu_supports("sse4.2"); }
    #elif defined(__aarch64__) && defined(__linux__)
      #include <sys/auxv.h>
      #include <asm/hwcap.h>
      #define WARMLOG_CRC __attribute__((target("+crc")))
      #define WARMLOG_CRC_8(crc, word) __builtin_aarch64_crc32cx((crc), (word))
      #define WARMLOG_CRC_1(crc, byte) __builtin_aarch64_crc32cb((crc), (byte))
      static int warmlog_has_crc(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
    #else
      #define WARMLOG_CRC
      #define WARMLOG_CRC_8(crc, word) (crc)
      #define WARMLOG_CRC_1(crc, byte) (crc)
      static int warmlog_has_crc(void) { return 0; }
    #endif
    WARMLOG_CRC static uint32_t warmlog_crc32c(const uint8_t *at, size_t size)
    {
        uint32_t crc = 0xffffffffu;
        uint64_t word;
        for (; size >= 8; at += 8, size -= 8) {
            memcpy(&word, at, 8);
            crc = WARMLOG_CRC_8(crc, word);
        }
        for (; size; at++, size--)
            crc = WARMLOG_CRC_1(crc, *at);
        return ~crc;
    }
    """
    int has_crc "warmlog_has_crc"() nogil
    uint32_t crc32c "warmlog_crc32c"(const uint8_t *at, size_t size) nogil

AVAILABLE = bool(has_crc())

cdef Py_ssize_t HEADER_SIZE = layout.HEADER_SIZE
cdef Py_ssize_t LOG_OVERHEAD = layout.LOG_OVERHEAD
cdef Py_ssize_t MIN_BATCH_LENGTH = layout.MIN_BATCH_LENGTH
cdef Py_ssize_t CRC_START = layout.CRC_START
cdef int MAGIC = layout.MAGIC
cdef int64_t MAX_RELATIVE = MAX_RELATIVE_OFFSET

cdef int LOG_APPEND_TIME = layout.LOG_APPEND_TIME_BIT
cdef int DELETE_HORIZON = layout.DELETE_HORIZON_BIT

cdef enum:
    OFFSET_STRIDE = 8
    TIME_STRIDE = 12


cdef struct End:  # the fields of `append.Tail` that change, and the state of the walk
    int64_t base_offset
    int64_t size
    int64_t next_offset
    int64_t first_timestamp
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t unindexed_size
    int64_t interval
    int64_t offset_entries
    int64_t max_offset_entries
    int64_t time_entries
    int64_t max_time_entries
    int64_t indexed_timestamp
    int64_t last_offset
    int32_t epoch
    bint has_producers
    uint8_t *offsets
    uint8_t *times


cdef inline int32_t int32_at(const uint8_t *at) noexcept nogil:
    return <int32_t>(<uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3])


cdef inline int64_t int64_at(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t><uint32_t>int32_at(at) << 32 | <uint32_t>int32_at(at + 4))


cdef inline uint8_t *put32(uint8_t *at, int64_t number) noexcept nogil:
    at[0], at[1], at[2], at[3] = number >> 24 & 255, number >> 16 & 255, number >> 8 & 255, number & 255
    return at + 4


cdef inline void add(End *tail, int64_t last_offset, int64_t max_timestamp, int64_t size) noexcept nogil:
    """Append a batch, as `Tail.add` does."""
    if max_timestamp > tail.max_timestamp:
        tail.max_timestamp = max_timestamp
        tail.max_timestamp_offset = last_offset
    if not tail.size:
        tail.first_timestamp = max_timestamp
    if tail.unindexed_size > tail.interval and tail.offset_entries < tail.max_offset_entries:
        tail.offset_entries += 1
        tail.unindexed_size = 0
        tail.offsets = put32(put32(tail.offsets, last_offset - tail.base_offset), tail.size)
        if tail.time_entries < tail.max_time_entries - 1 and tail.max_timestamp > tail.indexed_timestamp:
            tail.time_entries += 1
            tail.indexed_timestamp = tail.max_timestamp
            tail.times = put32(put32(tail.times, tail.max_timestamp >> 32), tail.max_timestamp)
            tail.times = put32(tail.times, tail.max_timestamp_offset - tail.base_offset)
    tail.size += size
    tail.unindexed_size += size
    tail.next_offset = last_offset + 1


cdef Py_ssize_t walk(End *tail, const uint8_t *at, Py_ssize_t size, bint verified, bint *new_epoch) noexcept nogil:
    """Append valid batches up to the first of a new leader epoch; return their total size in bytes."""
    cdef Py_ssize_t done = 0, length
    cdef int64_t first_offset, last_offset
    cdef int32_t delta, epoch
    new_epoch[0] = False
    while size - done >= HEADER_SIZE:
        length = int32_at(at + done + 8)
        first_offset, delta, epoch = int64_at(at + done), int32_at(at + done + 23), int32_at(at + done + 12)
        if length < MIN_BATCH_LENGTH or at[done + 16] != MAGIC or length > size - done - LOG_OVERHEAD:
            return done
        if first_offset <= tail.last_offset or delta < 0 or first_offset > INT64_MAX - delta - 1:
            return done
        if int64_at(at + done + 35) < int64_at(at + done + 27) and not at[done + 22] & (LOG_APPEND_TIME | DELETE_HORIZON):
            return done  # invalid largest timestamp: see `log_scan.timed`
        last_offset = first_offset + delta
        if last_offset - tail.base_offset > MAX_RELATIVE or tail.size > INT32_MAX:
            return done
        if verified and crc32c(at + done + CRC_START, length + LOG_OVERHEAD - CRC_START) != <uint32_t>int32_at(
            at + done + 17
        ):
            return done
        if epoch > tail.epoch:
            new_epoch[0] = True
            return done
        tail.has_producers |= int64_at(at + done + 43) >= 0
        add(tail, last_offset, int64_at(at + done + 35), length + LOG_OVERHEAD)
        tail.last_offset = last_offset
        done += length + LOG_OVERHEAD
    return done


def walk_sound(scan, chunk, bint verified, int64_t last_offset, int32_t epoch):
    """Add the valid batches at the start of `chunk`, which begins at the tail, to a scan.

    `last_offset` and `epoch` are those of the batch before; return those of the last batch added.
    """
    tail = scan.tail
    cdef Py_buffer view
    cdef End end
    cdef uint8_t *entries
    cdef Py_ssize_t most, done = 0
    cdef bint new_epoch = True
    end.base_offset, end.size, end.next_offset = tail.base_offset, tail.size, tail.next_offset
    end.first_timestamp, end.max_timestamp = tail.first_timestamp, tail.max_timestamp
    end.max_timestamp_offset, end.indexed_timestamp = tail.max_timestamp_offset, tail.indexed_timestamp
    end.unindexed_size, end.interval = tail.unindexed_size, tail.index_interval_bytes
    end.offset_entries, end.max_offset_entries = tail.offset_entries, tail.max_offset_entries
    end.time_entries, end.max_time_entries = tail.time_entries, tail.max_time_entries
    end.last_offset, end.epoch, end.has_producers = last_offset, epoch, False
    PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE)
    # Entries are more than an interval apart, and no batch is smaller than a header.
    most = view.len // max(HEADER_SIZE, min(end.interval, view.len)) + 2
    entries = <uint8_t *>malloc(most * (OFFSET_STRIDE + TIME_STRIDE))
    if entries == NULL:
        PyBuffer_Release(&view)
        raise MemoryError
    end.offsets, end.times = entries, entries + most * OFFSET_STRIDE
    try:
        while new_epoch:
            with nogil:
                done += walk(&end, <const uint8_t *>view.buf + done, view.len - done, verified, &new_epoch)
            if new_epoch:
                end.epoch = int32_at(<const uint8_t *>view.buf + done + 12)
                scan.epochs.append((end.epoch, int64_at(<const uint8_t *>view.buf + done)))
        scan.offset_entries.extend(entries[: end.offsets - entries])
        scan.time_entries.extend((entries + most * OFFSET_STRIDE)[: end.times - entries - most * OFFSET_STRIDE])
    finally:
        free(entries)
        PyBuffer_Release(&view)
    if end.has_producers:
        scan.producers.append(True)
    tail.size, tail.next_offset = end.size, end.next_offset
    tail.first_timestamp, tail.max_timestamp = end.first_timestamp, end.max_timestamp
    tail.max_timestamp_offset, tail.indexed_timestamp = end.max_timestamp_offset, end.indexed_timestamp
    tail.unindexed_size = end.unindexed_size
    tail.offset_entries, tail.time_entries = end.offset_entries, end.time_entries
    return end.last_offset, end.epoch


cdef int KEPT = BATCHES_KEPT
cdef int TRANSACTION_BITS = layout.TRANSACTIONAL_BIT | layout.CONTROL_BIT

cdef enum:
    SLOTS = 1024  # hash slots for the producers in a piece; once half are used, all batches of further producers are kept


cdef struct Seen:
    int64_t producer_id
    int count  # 0: free


cdef inline bint is_among_last(Seen *seen, int *used, int64_t producer_id) noexcept nogil:
    """Return whether a batch, counting from the end, is one of the last of its producer."""
    cdef uint32_t slot = <uint32_t>((<uint64_t>producer_id * <uint64_t>0x9E3779B97F4A7C15) >> 54)
    while seen[slot].count and seen[slot].producer_id != producer_id:
        slot = (slot + 1) % SLOTS
    if not seen[slot].count:
        if used[0] >= SLOTS // 2:
            return True
        used[0] += 1
        seen[slot].producer_id = producer_id
    seen[slot].count += 1
    return seen[slot].count <= KEPT


cdef Py_ssize_t find_producers(
    const uint8_t *at, Py_ssize_t size, int64_t left, int64_t start, int64_t end, int32_t *positions, Py_ssize_t *count
) noexcept nogil:
    """Find the positions of producers' batches with offsets in [start, end); return that of the next batch."""
    cdef Py_ssize_t position = 0, length
    cdef int64_t first_offset, last_offset
    count[0] = 0
    while size - position >= HEADER_SIZE:
        length = int32_at(at + position + 8)
        if length < MIN_BATCH_LENGTH or at[position + 16] != MAGIC or length > left - position - LOG_OVERHEAD:
            break
        first_offset = int64_at(at + position)
        last_offset = first_offset + int32_at(at + position + 23)
        if int64_at(at + position + 43) >= 0 and first_offset < end and last_offset >= start:
            positions[count[0]] = position
            count[0] += 1
        position += length + LOG_OVERHEAD
    return position


cdef void keep_last(const uint8_t *at, int32_t *positions, Py_ssize_t count, Seen *seen) noexcept nogil:
    """Replace by -1 the positions of batches that no state depends on, because of later ones of the same producer."""
    cdef int used = 0
    cdef Py_ssize_t index
    cdef const uint8_t *batch
    for index in range(count - 1, -1, -1):
        batch = at + positions[index]
        if not is_among_last(seen, &used, int64_at(batch + 43)) and not batch[22] & TRANSACTION_BITS:
            positions[index] = -1


def producer_batches(chunk, int64_t left, int64_t start, int64_t end):
    """Return the positions of producers' batches in a piece, and that of the next batch, which may lie past the piece.

    `left`: bytes of the file from the start of the piece on. `start`, `end`: range of offsets. Of the batches outside
    transactions, only the last five of each producer are returned, since a state has no more.
    """
    cdef Py_buffer view
    cdef Py_ssize_t index, count = 0, following
    cdef int32_t *positions
    cdef Seen *seen
    PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE)
    positions = <int32_t *>malloc((view.len // HEADER_SIZE + 1) * sizeof(int32_t))
    seen = <Seen *>malloc(SLOTS * sizeof(Seen))
    try:
        if positions == NULL or seen == NULL:
            raise MemoryError
        with nogil:
            following = find_producers(<const uint8_t *>view.buf, view.len, left, start, end, positions, &count)
            if count > KEPT:
                memset(seen, 0, SLOTS * sizeof(Seen))
                keep_last(<const uint8_t *>view.buf, positions, count, seen)
        return [positions[index] for index in range(count) if positions[index] >= 0], following
    finally:
        free(positions)
        free(seen)
        PyBuffer_Release(&view)
