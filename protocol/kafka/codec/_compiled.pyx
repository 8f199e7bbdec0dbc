# cython: language_level=3, embedsignature=False, binding=False, auto_pickle=False
# cython: cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled engine: the same classes, results and errors as `pure`, five to twenty times as fast.

A plan (`plan.py`) becomes steps with typed attributes, and two interpreters walk them: one reads a frame, one fills a
buffer. No code is specific to a message, so another API or version costs no build time.

1. No byte outside a frame is read: `at` never passes `end`, and each read is preceded by a check.
2. No Python code runs between reserving space in the buffer and filling it.
3. With a limit, all elements of an array are counted before the first one is read or written. Without a limit they are
   counted one by one, and the GIL is released after every BREATH units of work, so that a worker thread blocks no other.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_SetItem
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport Py_TYPE, PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.sequence cimport PySequence_GetSlice
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from sys import intern
from types import MemberDescriptorType

cimport cython
from msgspec import UNSET

from warmlog.protocol.kafka.codec import bounds
from warmlog.protocol.kafka.codec.bounds import (
    InvalidRequestError,
    MalformedError,
    UnwritableError,
    refuse_count,
    refuse_elements,
    refuse_length,
    refuse_null,
    refuse_short,
    refuse_size,
    refuse_string,
    refuse_tag_size,
    refuse_tags,
    refuse_text,
    refuse_varint,
    refuse_work,
)
from warmlog.protocol.kafka.codec.kept import KeptArray
from warmlog.protocol.kafka.codec.plan import Code
from warmlog.protocol.kafka.codec.plan import ReadPlan as PlanOfNothing
from warmlog.protocol.kafka.codec.reader import _no_names
from warmlog.protocol.kafka.codec.schema import REQUIRED, not_negative
from warmlog.protocol.kafka.codec.writer import topic_id_bytes

cdef extern from "Python.h":
    object PyObject_Vectorcall(object function, PyObject **arguments, size_t count, PyObject *names)
    object PyObject_CallOneArg(object function, object argument)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    double PyFloat_AsDouble(object number) except? -1
    double PyFloat_Unpack8(const char *data, int little) except? -1
    int PyFloat_Pack8(double number, char *data, int little) except -1
    PyObject *borrowed "PyTuple_GET_ITEM" (object values, Py_ssize_t slot)

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    int T_OBJECT_EX

cdef extern from "unistd.h" nogil:
    int usleep(unsigned int microseconds)

cdef enum:
    MOST_ARGUMENTS = 40
    FIRST_CAPACITY = 512
    BOOLEAN = 1
    INT8 = 2
    INT16 = 3
    UINT16 = 4
    INT32 = 5
    INT64 = 6
    FLOAT64 = 7
    UUID = 8
    STRING = 9
    DATA = 10
    BYTES = 11
    RECORDS = 12
    TOPIC_ID = 13
    ERROR = 14
    THROTTLE = 15
    STRUCT = 16
    ARRAY = 17
    FLAT = 18
    CONSTANT = 19
    UNKNOWN_TOPIC_ID = 100
    UUID_SIZE = 16
    MOST_SLOT_CHANGES = 8

assert {code.name: code.value for code in Code} == {
    "BOOLEAN": BOOLEAN, "INT8": INT8, "INT16": INT16, "UINT16": UINT16, "INT32": INT32, "INT64": INT64,
    "FLOAT64": FLOAT64, "UUID": UUID, "STRING": STRING, "DATA": DATA, "BYTES": BYTES, "RECORDS": RECORDS,
    "TOPIC_ID": TOPIC_ID, "ERROR": ERROR, "THROTTLE": THROTTLE, "STRUCT": STRUCT, "ARRAY": ARRAY, "FLAT": FLAT,
    "CONSTANT": CONSTANT,
}

cdef Py_ssize_t MAX_ELEMENTS = bounds.MAX_ELEMENTS
cdef Py_ssize_t MAX_UNKNOWN_TAGS = bounds.MAX_UNKNOWN_TAGS
cdef Py_ssize_t MAX_STRING_BYTES = bounds.MAX_STRING_BYTES
cdef Py_ssize_t BREATH = bounds.BREATH
cdef Py_ssize_t NO_LIMIT = bounds.NO_LIMIT
cdef Py_ssize_t CUT_BYTES = bounds.CUT_BYTES
cdef int TEXT_SHIFT = bounds.TEXT_SHIFT
cdef int COPY_SHIFT = bounds.COPY_SHIFT
cdef bytes NO_TOPIC_ID = bounds.NO_TOPIC_ID
cdef object NO_NAMES = _no_names
cdef int64_t INT64_LOWEST = -(1 << 63)
cdef int64_t INT64_HIGHEST = (1 << 63) - 1


# -- numbers --

cdef inline int16_t int16_at(const uint8_t *at) noexcept nogil:
    return <int16_t>(<uint16_t>at[0] << 8 | at[1])


cdef inline int32_t int32_at(const uint8_t *at) noexcept nogil:
    return <int32_t>(<uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3])


cdef inline int64_t int64_at(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t><uint32_t>int32_at(at) << 32 | <uint32_t>int32_at(at + 4))


cdef inline void put_int16(uint8_t *at, int64_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value


cdef inline void put_int32(uint8_t *at, int64_t value) noexcept nogil:
    put_int16(at, value >> 16)
    put_int16(at + 2, value)


cdef inline void put_int64(uint8_t *at, int64_t value) noexcept nogil:
    put_int32(at, value >> 32)
    put_int32(at + 4, value)


cdef int breathe() except -1:
    """Release the GIL briefly, so that a waiting thread can take it."""
    with nogil:
        usleep(0)
    return 0


# -- reading --

cdef class ReadStep:
    """One step of a ReadPlan. `slot`: index of the argument it fills, -1 for none."""

    cdef int code
    cdef int slot
    cdef int element
    cdef bint nullable
    cdef bint tagged
    cdef bint clamps
    cdef int size  # of a number that needs no conversion, else 0
    cdef object null
    cdef object convert
    cdef object only
    cdef tuple values
    cdef ReadPlan of

    def __init__(self, step, int slot):
        self.code = step.code
        self.slot = slot
        self.element = step.element or 0
        self.nullable = step.nullable
        self.tagged = step.tagged
        self.null = step.null
        self.clamps = step.convert is not_negative
        self.convert = None if self.clamps else step.convert
        self.size = {INT16: 2, INT32: 4, INT64: 8}.get(step.code, 0) if step.convert is step.only is None else 0
        self.only = step.only
        self.values = None if step.only is None else step.only.values
        self.of = None if step.of is None else ReadPlan(step.of)


cdef class ReadPlan:
    """One struct. Its arguments, in order: from steps and tagged fields, constants, inherited from a group."""

    cdef tuple steps
    cdef dict tagged
    cdef tuple names
    cdef tuple constants
    cdef Py_ssize_t first_constant
    cdef Py_ssize_t inherited
    cdef Py_ssize_t size
    cdef bint has_tags
    cdef object into
    cdef ReadStep inner

    def __init__(self, plan):
        names = []
        steps = []
        for step in plan.steps:
            steps.append(ReadStep(step, self.slot_for(names, step)))
        self.steps = tuple(steps)
        filled = len(names)
        self.tagged = {} if plan.tagged else None
        constants = dict(plan.constants)
        values = []
        for tag, step in plan.tagged.items():
            if step.to is not None:
                values.append(constants.pop(step.to))
            self.tagged[tag] = ReadStep(step, self.slot_for(names, step))
        names += constants
        values += constants.values()
        names += plan.inherited
        if len(names) > MOST_ARGUMENTS:
            raise ValueError(f"{plan.title}: {len(names)} arguments")
        self.names = tuple([intern(name) for name in names])
        self.constants = tuple(values)
        self.first_constant = filled
        self.inherited = len(plan.inherited)
        self.size = len(names)
        self.has_tags = plan.has_tags
        self.into = plan.into
        self.inner = None if plan.inner is None else ReadStep(plan.inner, -1)

    @staticmethod
    def slot_for(names, step):
        if step.to is None:
            return -1
        names.append(step.to)
        if step.code == TOPIC_ID:
            names.append("topic")
            return len(names) - 2
        return len(names) - 1


cdef struct Cursor:
    const uint8_t *start
    Py_ssize_t at
    Py_ssize_t end
    bint flexible
    Py_ssize_t elements_left
    Py_ssize_t tags_left
    Py_ssize_t work_left
    bint is_limited
    PyObject *frame
    PyObject *names
    PyObject *refused  # the step that read a value which its field may not have
    int64_t refused_value


cdef inline int need(Cursor *c, Py_ssize_t size) except -1:
    if c.end - c.at < size:
        refuse_short()
    return 0


cdef int work(Cursor *c, Py_ssize_t units) except -1:
    c.work_left -= units
    if c.work_left < 0:
        if c.is_limited:
            refuse_work()
        c.work_left = BREATH
        breathe()
    return 0


cdef inline int element(Cursor *c) except -1:
    """Count an element before reading it, unless a limit is set: then `read_count` has counted it."""
    return 0 if c.is_limited else work(c, 1)


cdef int64_t read_uvarint(Cursor *c) except -1:
    cdef int64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        need(c, 1)
        byte = c.start[c.at]
        c.at += 1
        value |= <int64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            refuse_varint(too_long=True)
    if value >> 32:
        refuse_varint(too_long=False)
    return value


cdef inline int64_t read_length(Cursor *c) except? -2:
    """The length of data, or the count of an array; -1 for null."""
    cdef int64_t length
    if c.flexible:
        if c.at < c.end and c.start[c.at] < 0x80:
            c.at += 1
            return <int64_t>c.start[c.at - 1] - 1
        return read_uvarint(c) - 1
    need(c, 4)
    length = int32_at(c.start + c.at)
    c.at += 4
    return length


cdef inline Py_ssize_t take(Cursor *c, int64_t length) except -1:
    """Skip `length` bytes; return the position of the first."""
    cdef Py_ssize_t start = c.at
    if length < 0 or length > c.end - start:
        refuse_length(length, c.end - start)
    c.at = start + <Py_ssize_t>length
    return start


cdef Py_ssize_t read_count(Cursor *c, bint nullable) except? -2:
    """The count of an array; -1 for null."""
    cdef int64_t count = read_length(c), left = c.end - c.at
    if count > left or count < -1:
        refuse_count(count, left)
    if count > c.elements_left:
        refuse_elements()
    if count > 0:
        c.elements_left -= count
        if c.is_limited:
            work(c, count)
    elif count < 0 and not nullable:
        refuse_null("an array")
    return count


cdef object read_text(Cursor *c, int64_t length):
    cdef Py_ssize_t start
    if length >> TEXT_SHIFT:
        if MAX_STRING_BYTES < length <= c.end - c.at:
            refuse_string(length)
        work(c, length >> TEXT_SHIFT)
    start = take(c, length)
    return PyUnicode_DecodeUTF8(<char *>c.start + start, length, NULL)


cdef object read_classic_string(Cursor *c):
    """A string, or None."""
    cdef int16_t length
    need(c, 2)
    length = int16_at(c.start + c.at)
    c.at += 2
    return None if length == -1 else read_text(c, length)


cdef object read_string(Cursor *c, bint nullable, object null):
    cdef int64_t length
    cdef object text
    if c.flexible:
        length = read_length(c)
        if length >= 0:
            return read_text(c, length)
    else:
        text = read_classic_string(c)
        if text is not None:
            return text
    if not nullable:
        refuse_null("a string")
    return null


cdef object read_data(Cursor *c, bint nullable, object null, bint copied):
    cdef int64_t length = read_length(c)
    cdef Py_ssize_t start
    if length == -1:
        if not nullable:
            refuse_null("bytes")
        return null
    start = take(c, length)
    if copied:
        work(c, length >> COPY_SHIFT)
        return PyBytes_FromStringAndSize(<char *>c.start + start, length)
    return PySequence_GetSlice(<object>c.frame, start, start + length)


cdef object read_primitive(Cursor *c, int code, bint nullable, object null, bint clamps):
    cdef const uint8_t *at = c.start + c.at
    cdef int64_t number
    if code == INT32:
        need(c, 4)
        number = int32_at(at)
        c.at += 4
    elif code == INT64:
        need(c, 8)
        number = int64_at(at)
        c.at += 8
    elif code == INT16:
        need(c, 2)
        number = int16_at(at)
        c.at += 2
    elif code == STRING:
        return read_string(c, nullable, null)
    elif code == DATA:
        return read_data(c, nullable, null, False)
    elif code == BYTES:
        return read_data(c, nullable, null, True)
    elif code == UUID or code == TOPIC_ID:
        need(c, UUID_SIZE)
        c.at += UUID_SIZE
        return PyBytes_FromStringAndSize(<const char *>at, UUID_SIZE)
    elif code == BOOLEAN:
        need(c, 1)
        c.at += 1
        return at[0] != 0
    elif code == INT8:
        need(c, 1)
        number = <int8_t>at[0]
        c.at += 1
    elif code == UINT16:
        need(c, 2)
        number = <uint16_t>int16_at(at)
        c.at += 2
    else:  # FLOAT64
        need(c, 8)
        c.at += 8
        return PyFloat_Unpack8(<const char *>at, 0)
    if clamps and number < 0:
        number = 0
    return number


cdef object read_step(ReadStep step, Cursor *c):
    cdef object value
    cdef int code = step.code
    if code < STRUCT:
        value = read_primitive(c, code, step.nullable, step.null, step.clamps)
    elif code == STRUCT:
        if step.nullable:
            need(c, 1)
            c.at += 1
            if <int8_t>c.start[c.at - 1] < step.tagged:
                return step.null
        value = read_struct(step.of, c, NULL)
    else:
        value = read_array(step, c)
    if step.only is not None and c.refused is NULL and value not in <tuple>step.values:
        c.refused = <PyObject *>step
        c.refused_value = value
    if step.convert is not None and not (step.nullable and value is step.null):
        return PyObject_CallOneArg(step.convert, value)
    return value


cdef object read_array(ReadStep step, Cursor *c):
    cdef Py_ssize_t count = read_count(c, step.nullable), slot
    cdef object values, value
    if count < 0:
        return step.null
    if step.code == FLAT:
        return read_groups(step.of, count, c)
    values = PyTuple_New(count)
    for slot in range(count):
        element(c)
        if step.of is None:
            value = read_primitive(c, step.element, False, None, False)
        else:
            value = read_struct(step.of, c, NULL)
        Py_INCREF(value)
        PyTuple_SET_ITEM(values, slot, value)
    return values


cdef object read_groups(ReadPlan plan, Py_ssize_t count, Cursor *c):
    """Read the elements of all groups, each with the fields of its group."""
    cdef PyObject *arguments[MOST_ARGUMENTS]
    cdef Py_ssize_t slot, filled = plan.size
    cdef object values = ()
    cdef list joined
    for slot in range(filled):
        arguments[slot] = NULL
    try:
        for slot in range(count):
            element(c)
            read_steps(plan, c, arguments)
            elements = read_elements(plan.inner.of, c, arguments)
            if plan.has_tags:
                read_tags(plan, c, arguments)
            if slot == 0:
                values = elements
            else:
                if slot == 1:
                    joined = list(values)
                joined.extend(elements)
    finally:
        for slot in range(filled):
            Py_XDECREF(arguments[slot])
    return values if count < 2 else tuple(joined)


cdef object read_elements(ReadPlan plan, Cursor *c, PyObject **group):
    cdef Py_ssize_t slot, count = read_count(c, False)
    cdef object values = PyTuple_New(count), value
    for slot in range(count):
        element(c)
        value = read_struct(plan, c, group)
        Py_INCREF(value)
        PyTuple_SET_ITEM(values, slot, value)
    return values


cdef inline int put(PyObject **arguments, int slot, object value) except -1:
    Py_XDECREF(arguments[slot])
    Py_INCREF(value)
    arguments[slot] = <PyObject *>value
    return 0


cdef int read_steps(ReadPlan plan, Cursor *c, PyObject **arguments) except -1:
    cdef ReadStep step
    cdef object value, name
    cdef Py_ssize_t slot
    for slot in range(PyTuple_GET_SIZE(plan.steps)):
        step = <ReadStep>PyTuple_GET_ITEM(plan.steps, slot)
        if step.size:
            need(c, step.size)
            if step.slot >= 0:
                put(arguments, step.slot, number_at(c.start + c.at, step.size))
            c.at += step.size
            continue
        value = read_step(step, c)
        if step.slot < 0:
            continue
        put(arguments, step.slot, value)
        if step.code == TOPIC_ID:
            name = PyObject_CallOneArg(<object>c.names, value)
            put(arguments, step.slot + 1, name or "")
    return 0


cdef inline object number_at(const uint8_t *at, int size):
    if size == 4:
        return int32_at(at)
    if size == 8:
        return int64_at(at)
    return int16_at(at)


cdef object read_struct(ReadPlan plan, Cursor *c, PyObject **group):
    cdef PyObject *arguments[MOST_ARGUMENTS]
    cdef Py_ssize_t slot, size = plan.size, first = plan.first_constant, last = size - plan.inherited
    cdef dict mapping
    for slot in range(first):
        arguments[slot] = NULL
    for slot in range(first, last):
        arguments[slot] = borrowed(plan.constants, slot - first)
        Py_INCREF(<object>arguments[slot])
    for slot in range(last, size):
        arguments[slot] = group[slot - last]
        Py_INCREF(<object>arguments[slot])
    try:
        read_steps(plan, c, arguments)
        if plan.has_tags:
            read_tags(plan, c, arguments)
        if plan.into is not None:
            return PyObject_Vectorcall(plan.into, arguments, 0, <PyObject *>plan.names)
        mapping = {}
        for slot in range(size):
            PyDict_SetItem(mapping, plan.names[slot], <object>arguments[slot])
        return mapping
    finally:
        for slot in range(size):
            Py_XDECREF(arguments[slot])


cdef int read_tags(ReadPlan plan, Cursor *c, PyObject **arguments) except -1:
    cdef int64_t count, tag, size
    cdef Py_ssize_t start, end
    cdef ReadStep step
    if c.at < c.end and c.start[c.at] == 0:
        c.at += 1
        return 0
    count = read_uvarint(c)
    while count > 0:
        count -= 1
        tag = read_uvarint(c)
        size = read_uvarint(c)
        if size > c.end - c.at:
            refuse_length(size, c.end - c.at)
        work(c, 1)
        start = c.at
        end = start + <Py_ssize_t>size
        step = None if plan.tagged is None else plan.tagged.get(tag)
        if step is None:
            if c.tags_left < 1:
                refuse_tags()
            c.tags_left -= 1
            c.at = end
            continue
        value = read_step(step, c)
        if step.slot >= 0:
            put(arguments, step.slot, value)
        if c.elements_left < 1:
            refuse_elements()
        c.elements_left -= 1
        if c.at != end:
            refuse_tag_size(tag, c.at - start, size)
    return 0


cdef object read_message(ReadPlan plan, Cursor *c):
    """Read a whole message. Raises InvalidRequestError if a field has a value that is not allowed."""
    cdef object message = read_struct(plan, c, NULL)
    if c.refused is not NULL:
        only = (<ReadStep>c.refused).only
        raise InvalidRequestError(message, only.code, only.message.format(c.refused_value))
    return message


cdef inline void set_up(Cursor *c, Py_buffer *view, object frame, object names, Py_ssize_t limit):
    c.start = <const uint8_t *>view.buf
    c.at = 0
    c.end = view.len
    c.elements_left = MAX_ELEMENTS
    c.tags_left = MAX_UNKNOWN_TAGS
    c.is_limited = limit != NO_LIMIT
    c.work_left = limit if c.is_limited else BREATH
    c.frame = <PyObject *>frame
    c.names = <PyObject *>names
    c.refused = NULL


cdef class MessageReader:
    """Reads messages by one plan. Not bound to a frame; safe to share between threads."""

    cdef readonly object plan
    cdef ReadPlan steps
    cdef bint flexible

    def __init__(self, plan):
        self.plan = plan
        self.steps = ReadPlan(plan)
        self.flexible = plan.flexible

    def read(
        self,
        frame,
        Py_ssize_t position=0,
        names=NO_NAMES,
        Py_ssize_t limit=NO_LIMIT,
        Py_ssize_t elements=MAX_ELEMENTS,
    ):
        """Read a message at `position`; return it and the position after it. `elements`: limit for all its arrays."""
        cdef Py_buffer view
        cdef Cursor c
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        try:
            set_up(&c, &view, frame, names, limit)
            c.at = position
            c.elements_left = elements
            c.flexible = self.flexible
            return read_message(self.steps, &c), c.at
        finally:
            PyBuffer_Release(&view)


cdef class _RequestPlan:
    """The reader or writer for messages of an API in one version."""

    cdef object api
    cdef object version
    cdef MessageReader reader
    cdef MessageWriter writer
    cdef bint flexible_header


cdef class RequestDecoder:
    """Reads requests with their headers; see `pure.RequestDecoder`."""

    cdef object find
    cdef object unserved
    cdef object make_call
    cdef object refuse
    cdef object names
    cdef dict plans

    def __init__(self, find, unserved, make_call, refuse, names):
        self.find = find
        self.unserved = unserved
        self.make_call = make_call
        self.refuse = refuse
        self.names = names
        self.plans = {}

    def decode(self, frame, Py_ssize_t limit=NO_LIMIT):
        """Decode the call in a frame (without its length)."""
        cdef Py_buffer view
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        try:
            return self.decode_view(frame, &view, limit)
        finally:
            PyBuffer_Release(&view)

    cdef object decode_view(self, object frame, Py_buffer *view, Py_ssize_t limit):
        cdef Cursor c
        cdef _RequestPlan plan
        cdef int32_t correlation_id
        set_up(&c, view, frame, self.names, limit)
        if c.end < 8:
            raise MalformedError(f"a frame of {c.end} bytes holds no request header")
        correlation_id = int32_at(c.start + 4)
        kind = int32_at(c.start)  # key and version
        plan = self.plans.get(kind)
        if plan is None:
            plan = self.look_up(kind, int16_at(c.start), int16_at(c.start + 2))
            if plan is None:
                return self.unserved(int16_at(c.start), int16_at(c.start + 2), correlation_id)
        c.at = 8
        c.flexible = plan.flexible_header
        try:
            client_id = read_classic_string(&c) or ""
            if c.flexible:
                read_tags(NO_STEPS, &c, NULL)
            c.flexible = plan.reader.flexible
            request = read_message(plan.reader.steps, &c)
        except InvalidRequestError as problem:
            call = self.make_call(plan.api, plan.version, correlation_id, client_id, problem.request)
            self.refuse(call, problem)
        except (MalformedError, UnicodeDecodeError) as problem:
            raise MalformedError(f"no {plan.api.name} request of version {plan.version}: {problem}") from None
        return self.make_call(plan.api, plan.version, correlation_id, client_id, request)

    cdef _RequestPlan look_up(self, kind, int key, int version):
        cdef _RequestPlan plan
        row = self.find(key, version)
        if row is None:
            return None
        plan = _RequestPlan()
        plan.api, plan.version, plan.reader, plan.flexible_header = row
        self.plans[kind] = plan
        return plan


cdef ReadPlan NO_STEPS = ReadPlan(PlanOfNothing("header", flexible=True, has_tags=True, steps=()))


# -- writing --

cdef class WriteStep:
    """One step of a WritePlan. Writes `attr` of the value, `key` of the mapping, or the result of `get`."""

    cdef int code
    cdef int element
    cdef bint nullable
    cdef bint kept
    cdef bint required
    cdef bint has_null
    cdef str attr
    cdef str key
    cdef object get
    cdef object default
    cdef object null
    cdef object replaced
    cdef object keys
    cdef bytes constant
    cdef WritePlan of
    cdef int64_t tag
    cdef int version
    cdef object per_reply
    cdef Py_ssize_t reply_slot  # slot of its value among those of the reply
    cdef bint is_number  # an attribute of so many bytes, and nothing to decide
    cdef int64_t lowest
    cdef int64_t highest
    cdef int size
    cdef object slot_type  # the class that was met last; `attr` is a slot of it, so far behind an object's address
    cdef Py_ssize_t slot_offset
    cdef int slot_changes

    def __init__(self, step, list per_reply):
        self.code = step.code
        self.element = step.element or 0
        self.nullable = step.nullable
        self.kept = step.kept
        self.attr = None if step.attr is None else intern(step.attr)
        self.key = step.key
        self.get = step.get
        self.required = step.default is REQUIRED
        self.default = step.default
        self.null = step.null
        self.has_null = step.nullable or step.null is not None
        self.replaced = step.replaced
        self.keys = step.keys
        self.constant = step.constant
        self.of = None if step.of is None else WritePlan(step.of, per_reply)
        self.version = step.version
        self.slot_changes = 0
        self.per_reply = step.per_reply
        if step.per_reply is not None:
            self.reply_slot = len(per_reply)
            per_reply.append((step.per_reply, step.version))
        self.size = {INT16: 2, ERROR: 2, INT32: 4, INT64: 8}.get(step.code, 0)
        self.highest = {2: (1 << 15) - 1, 4: (1 << 31) - 1, 8: INT64_HIGHEST}.get(self.size, 0)
        self.lowest = -self.highest - 1
        self.is_number = (
            self.size
            and step.attr is not None
            and step.get is None
            and step.per_reply is None
            and not self.has_null
            and not step.replaced
        )
        self.tag = -1 if step.tag is None else step.tag


cdef class WritePlan:
    """One struct, or the groups of a Flat array."""

    cdef tuple steps
    cdef tuple tagged
    cdef tuple group_attrs
    cdef bint has_tags
    cdef WriteStep inner

    def __init__(self, plan, list per_reply):
        self.steps = tuple([WriteStep(step, per_reply) for step in plan.steps])
        self.tagged = tuple([WriteStep(step, per_reply) for step in plan.tagged])
        self.group_attrs = tuple([intern(attr) for attr in plan.group_attrs])
        self.has_tags = plan.has_tags
        self.inner = None if plan.inner is None else WriteStep(plan.inner, per_reply)


@cython.freelist(4)
@cython.no_gc
cdef class Output:
    """The bytes written so far, and the slices between them.

    `cuts`: position in the bytes, slice, position, slice, ...
    """

    cdef uint8_t first[FIRST_CAPACITY]
    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef Py_ssize_t max_size
    cdef bint flexible
    cdef bint is_limited
    cdef bint cuts_text
    cdef Py_ssize_t work_left
    cdef int64_t throttle_ms
    cdef Py_ssize_t slices_size
    cdef list cuts
    cdef object request
    cdef list per_reply

    def __cinit__(self):
        self.data = self.first
        self.capacity = FIRST_CAPACITY
        self.max_size = NO_LIMIT
        self.size = 0
        self.slices_size = 0

    def __dealloc__(self):
        if self.data != self.first:
            PyMem_Free(self.data)

    cdef inline uint8_t *reserve(self, Py_ssize_t size) except NULL:
        """Reserve the next bytes and return their address; the caller fills all of them."""
        if self.capacity - self.size < size:
            self.grow(size)
        self.size += size
        return self.data + self.size - size

    cdef int grow(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t capacity = self.capacity * 2
        if capacity < self.size + size:
            capacity = self.size + size
        if capacity > self.max_size:
            if self.size + size > self.max_size:
                refuse_size(self.max_size)
            capacity = self.max_size
        cdef uint8_t *data = <uint8_t *>PyMem_Realloc(NULL if self.data == self.first else self.data, capacity)
        if data == NULL:
            raise MemoryError
        if self.data == self.first:
            memcpy(data, self.first, self.size)
        self.data = data
        self.capacity = capacity
        return 0

    cdef int work(self, Py_ssize_t units) except -1:
        self.work_left -= units
        if self.work_left < 0:
            if self.is_limited:
                refuse_work()
            self.work_left = BREATH
            breathe()
        return 0

    cdef inline int element(self) except -1:
        """Count an element before writing it, unless a limit is set: then it was counted with its array."""
        return 0 if self.is_limited else self.work(1)

    cdef inline int raw(self, const void *data, Py_ssize_t size) except -1:
        memcpy(self.reserve(size), data, size)
        return 0

    cdef inline int byte(self, uint8_t value) except -1:
        self.reserve(1)[0] = value
        return 0

    cdef int uvarint(self, uint64_t value) except -1:
        while value >= 0x80:
            self.byte(<uint8_t>(value & 0x7F | 0x80))
            value >>= 7
        self.byte(<uint8_t>value)
        return 0

    cdef inline int length(self, Py_ssize_t length) except -1:
        """The length of data, or the count of an array; -1 for null."""
        if self.flexible:
            return self.uvarint(<uint64_t>(length + 1))
        put_int32(self.reserve(4), length)
        return 0

    cdef int count(self, Py_ssize_t count) except -1:
        if self.is_limited:
            self.work(count)
        return self.length(count)

    cdef int number(self, object value, int64_t lowest, int64_t highest, int size) except -1:
        cdef int overflow = 0
        cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow or number < lowest or number > highest:
            raise UnwritableError(f"a value that its field cannot hold: {value}")
        cdef uint8_t *at = self.reserve(size)
        if size == 4:
            put_int32(at, number)
        elif size == 8:
            put_int64(at, number)
        elif size == 2:
            put_int16(at, number)
        else:
            at[0] = <uint8_t>number
        return 0

    cdef int text(self, object text) except -1:
        cdef Py_ssize_t size
        cdef const char *encoded = PyUnicode_AsUTF8AndSize(text, &size)
        if size >> TEXT_SHIFT:
            if size > MAX_STRING_BYTES:
                if not self.cuts_text:
                    refuse_text(size)
                size = MAX_STRING_BYTES
                while <uint8_t>encoded[size] & 0xC0 == 0x80:
                    size -= 1
            self.work(size >> TEXT_SHIFT)
        if self.flexible:
            self.uvarint(<uint64_t>size + 1)
        else:
            put_int16(self.reserve(2), size)
        return self.raw(encoded, size)

    cdef int bytes_(self, object data) except -1:
        cdef Py_buffer view
        if PyBytes_CheckExact(data):
            self.work(PyBytes_GET_SIZE(data) >> COPY_SHIFT)
            self.length(PyBytes_GET_SIZE(data))
            return self.raw(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.work(view.len >> COPY_SHIFT)
            self.length(view.len)
            self.raw(view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef int records(self, object part) except -1:
        cdef Py_ssize_t size = len(part)
        self.length(size)
        if size:
            if self.cuts is None:
                self.cuts = []
            self.cuts.append(self.size)
            self.cuts.append(part)
            self.slices_size += size
        return 0

    cdef int null(self, int code) except -1:
        if code == STRING and not self.flexible:
            put_int16(self.reserve(2), -1)
            return 0
        if code == STRUCT:
            return self.byte(0xFF)
        return self.length(-1)

    cdef bytes written(self):
        if self.cuts is not None:
            return b"".join(self.pieces())
        return PyBytes_FromStringAndSize(<const char *>self.data, self.size)

    cdef list finish_frame(self):
        """Return all pieces in order; the first four bytes hold the length of the rest."""
        cdef Py_ssize_t start = 0, end
        put_int32(self.data, self.size + self.slices_size - 4)
        cdef list pieces = []
        if self.cuts is None:
            while start < self.size:
                if start:
                    breathe()
                end = min(self.size, start + CUT_BYTES)
                pieces.append(PyBytes_FromStringAndSize(<const char *>self.data + start, end - start))
                start = end
            return pieces
        return self.pieces()

    cdef list pieces(self):
        """Return the bytes between slices, and the slices, in order."""
        cdef Py_ssize_t start = 0, end, slot
        cdef list pieces = []
        for slot in range(0, len(self.cuts), 2):
            end = self.cuts[slot]
            pieces.append(PyBytes_FromStringAndSize(<const char *>self.data + start, end - start))
            pieces.append(self.cuts[slot + 1])
            start = end
        if start < self.size:
            pieces.append(PyBytes_FromStringAndSize(<const char *>self.data + start, self.size - start))
        return pieces


cdef inline object attribute(WriteStep step, object owner):
    """Read an attribute; directly from its slot if the owner has the class seen last, which is nearly always so."""
    cdef PyObject *value
    if <PyObject *>Py_TYPE(owner) == <PyObject *>step.slot_type:
        value = (<PyObject **>(<char *><PyObject *>owner + step.slot_offset))[0]
        if value is not NULL:
            return <object>value
    elif step.slot_changes < MOST_SLOT_CHANGES:
        find_slot(step, type(owner))
    return getattr(owner, step.attr)


cdef int find_slot(WriteStep step, object owner_type) except -1:
    cdef PyMemberDef *member
    step.slot_changes += 1
    step.slot_type = None
    for base in owner_type.__mro__:
        member_of_base = base.__dict__.get(step.attr)
        if member_of_base is not None:
            if type(member_of_base) is MemberDescriptorType:
                member = (<PyMemberDescrObject *><PyObject *>member_of_base).d_member
                if member.type == T_OBJECT_EX:
                    step.slot_offset = member.offset
                    step.slot_type = owner_type
            break
    return 0


cdef inline object value_of(WriteStep step, Output out, object owner):
    cdef object value
    if step.per_reply is not None:
        value = out.per_reply[step.reply_slot]
    elif step.attr is not None and step.get is None:
        value = attribute(step, owner)
    elif step.get is not None:
        value = step.get(owner, out.request, step.version)
    elif step.key is None:
        return owner
    elif step.required:
        value = owner[step.key]
    else:
        value = owner.get(step.key, step.default)
    if step.has_null and (value is None or value is UNSET):
        return step.null
    return value


cdef int write_primitive(int code, Output out, object value) except -1:
    if code == INT32:
        return out.number(value, -(1 << 31), (1 << 31) - 1, 4)
    if code == INT64:
        return out.number(value, INT64_LOWEST, INT64_HIGHEST, 8)
    if code == INT16 or code == ERROR:
        return out.number(value, -(1 << 15), (1 << 15) - 1, 2)
    if code == STRING:
        return out.text(value)
    if code == BYTES or code == DATA:
        return out.bytes_(value)
    if code == RECORDS:
        return out.records(value)
    if code == UUID or code == TOPIC_ID:
        if not PyBytes_CheckExact(value) or PyBytes_GET_SIZE(value) != UUID_SIZE:
            value = topic_id_bytes(value)
        return out.raw(PyBytes_AS_STRING(value), UUID_SIZE)
    if code == BOOLEAN:
        return out.byte(1 if value else 0)
    if code == INT8:
        return out.number(value, -128, 127, 1)
    if code == UINT16:
        return out.number(value, 0, (1 << 16) - 1, 2)
    # FLOAT64
    return PyFloat_Pack8(PyFloat_AsDouble(value), <char *>out.reserve(8), 0)


cdef int write_step(WriteStep step, Output out, object owner, bint unknown) except -1:
    cdef object value
    cdef int code = step.code
    if code == CONSTANT:
        return out.raw(PyBytes_AS_STRING(step.constant), PyBytes_GET_SIZE(step.constant))
    if code == THROTTLE:
        put_int32(out.reserve(4), out.throttle_ms)
        return 0
    value = value_of(step, out, owner)
    if value is None and step.nullable:
        return out.byte(0) if code == STRUCT and step.tag >= 0 else out.null(code)
    if code == ERROR:
        if unknown:
            put_int16(out.reserve(2), UNKNOWN_TOPIC_ID)
            return 0
        if step.replaced is not None:
            value = step.replaced.get(value, value)
    if code < STRUCT:
        return write_primitive(code, out, value)
    if code == STRUCT:
        if step.nullable:
            out.byte(1)
        return write_struct(step.of, out, value, False)
    if code == FLAT:
        return write_groups(step, out, value, owner)
    if step.kept and type(value) is KeptArray:
        return write_kept(step, out, value)
    return write_array(step, out, value)


cdef int write_kept(WriteStep step, Output out, object values) except -1:
    cdef Py_ssize_t start = out.size
    cdef bytes data = values.written.get(step)
    if data is None:
        write_array(step, out, values)
        values.keep(step, PyBytes_FromStringAndSize(<const char *>out.data + start, out.size - start))
        return 0
    out.work(PyBytes_GET_SIZE(data) >> COPY_SHIFT)
    return out.raw(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef int write_array(WriteStep step, Output out, object value) except -1:
    cdef tuple values = value if type(value) is tuple else tuple(value)
    cdef Py_ssize_t count = PyTuple_GET_SIZE(values), slot
    out.count(count)
    for slot in range(count):
        out.element()
        if step.of is None:
            write_primitive(step.element, out, <object>PyTuple_GET_ITEM(values, slot))
        else:
            write_struct(step.of, out, <object>PyTuple_GET_ITEM(values, slot), False)
    return 0


cdef int write_groups(WriteStep step, Output out, object value, object owner) except -1:
    """Write values in groups; `ends` has the index at which each group ends."""
    cdef WritePlan plan = step.of
    cdef WriteStep step_of_topic
    cdef tuple values = value if type(value) is tuple else tuple(value)
    cdef tuple keys = values
    cdef Py_ssize_t count = PyTuple_GET_SIZE(values), slot, start = 0, end, groups
    cdef bint unknown = False
    cdef Py_ssize_t *ends
    if out.is_limited:
        out.work(count)
    if step.keys is not None:
        keys = tuple(step.keys(owner, out.request))
        if PyTuple_GET_SIZE(keys) != count:
            raise ValueError(f"{count} values for {PyTuple_GET_SIZE(keys)} keys")
    ends = <Py_ssize_t *>PyMem_Malloc((count + 1) * sizeof(Py_ssize_t))
    if ends == NULL:
        raise MemoryError
    try:
        groups = find_groups(plan.group_attrs, keys, count, ends)
        out.count(groups)
        for slot in range(groups):
            end = ends[slot]
            key = <object>PyTuple_GET_ITEM(keys, start)
            if step.keys is not None:
                unknown = key.topic == ""
            for step_of_topic in plan.steps:
                write_step(step_of_topic, out, key, False)
            out.length(end - start)
            while start < end:
                out.element()
                write_struct(plan.inner.of, out, <object>PyTuple_GET_ITEM(values, start), unknown)
                start += 1
            if plan.has_tags:
                out.byte(0)
    finally:
        PyMem_Free(ends)
    return 0


cdef Py_ssize_t find_groups(tuple attrs, tuple keys, Py_ssize_t count, Py_ssize_t *ends) except -1:
    cdef Py_ssize_t slot, groups = 0
    cdef object topic, last = None
    for slot in range(count):
        key = <object>PyTuple_GET_ITEM(keys, slot)
        if PyTuple_GET_SIZE(attrs) == 1:
            topic = getattr(key, <object>PyTuple_GET_ITEM(attrs, 0))
        else:
            topic = tuple([getattr(key, attr) for attr in attrs])
        if slot and topic is not last and topic != last:
            ends[groups] = slot
            groups += 1
        last = topic
    if count:
        ends[groups] = count
        groups += 1
    return groups


cdef int write_struct(WritePlan plan, Output out, object owner, bint unknown) except -1:
    cdef Py_ssize_t slot
    cdef WriteStep step
    for slot in range(PyTuple_GET_SIZE(plan.steps)):
        step = <WriteStep>PyTuple_GET_ITEM(plan.steps, slot)
        if step.is_number and not (unknown and step.code == ERROR):
            out.number(attribute(step, owner), step.lowest, step.highest, step.size)
        else:
            write_step(step, out, owner, unknown)
    if PyTuple_GET_SIZE(plan.tagged):
        write_tagged(plan, out, owner)
    return 0


cdef int write_tagged(WritePlan plan, Output out, object owner) except -1:
    """Write the tagged fields that differ from their defaults. Each is written, measured, and moved behind its size."""
    cdef WriteStep step
    cdef list given = None
    cdef Py_ssize_t start, size, head
    for step in plan.tagged:
        value = owner.get(step.key, step.default) if step.key is not None else value_of(step, out, owner)
        if value is not step.default and value != step.default:
            if given is None:
                given = []
            given.append(step)
    if given is None:
        return out.byte(0)
    out.uvarint(len(given))
    for step in given:
        out.uvarint(<uint64_t>step.tag)
        start = out.size
        write_step(step, out, owner, False)
        size = out.size - start
        head = 1
        while size >> 7 * head:
            head += 1
        out.reserve(head)
        memmove(out.data + start + head, out.data + start, size)
        out.size = start
        out.uvarint(<uint64_t>size)
        out.size = start + head + size
    return 0


cdef class MessageWriter:
    """Writes messages by one plan. Safe to share between threads."""

    cdef readonly object plan
    cdef WritePlan steps
    cdef list per_reply
    cdef bint flexible

    def __init__(self, plan):
        self.plan = plan
        self.per_reply = []
        self.steps = WritePlan(plan, self.per_reply)
        self.flexible = plan.flexible

    cdef int set_up(self, Output out) except -1:
        cdef Py_ssize_t version
        out.flexible = self.flexible
        if self.per_reply:
            out.per_reply = [compute(out.request, version) for compute, version in self.per_reply]
        return 0

    cdef int run(self, Output out, object value) except -1:
        self.set_up(out)
        return write_struct(self.steps, out, value, False)

    def write(self, value, bytes start=b"", request=None):
        """Write a message whose records are bytes, after `start`. Raises UnwritableError."""
        cdef Output out = Output()
        out.work_left = BREATH
        out.request = request
        out.raw(PyBytes_AS_STRING(start), PyBytes_GET_SIZE(start))
        self.run(out, value)
        return out.written()

    def write_each(self, values, bytes start=b"", request=None):
        """Write a message for each value, as `write` does. What is computed once for a reply is computed once."""
        cdef Output out = Output()
        cdef list written = []
        out.work_left = BREATH
        out.request = request
        self.set_up(out)
        for value in values:
            out.size = out.slices_size = 0
            out.cuts = None
            out.raw(PyBytes_AS_STRING(start), PyBytes_GET_SIZE(start))
            write_struct(self.steps, out, value, False)
            written.append(out.written())
        return written


cdef class ReplyEncoder:
    """Writes replies with their headers; see `pure.ReplyEncoder`."""

    cdef object find
    cdef object failure_type
    cdef dict plans

    def __init__(self, find, failure_type):
        self.find = find
        self.failure_type = failure_type
        self.plans = {}

    def encode(
        self, call, response, int throttle_ms=0, Py_ssize_t limit=NO_LIMIT, Py_ssize_t max_bytes=NO_LIMIT
    ):
        """Write the whole reply frame: bytes, and the slices unchanged."""
        cdef _RequestPlan plan
        cdef Output out
        cdef uint8_t *at
        cdef Py_ssize_t version = call.version
        api = call.api
        if type(response) is self.failure_type:
            response = api.failed(call.request, response)
        kind = <int64_t>api.key << 16 | version
        plan = self.plans.get(kind)
        if plan is None:
            plan = _RequestPlan()
            plan.writer, plan.flexible_header = self.find(api, version)
            self.plans[kind] = plan
        out = Output()
        out.is_limited = limit != NO_LIMIT
        out.cuts_text = True
        out.work_left = limit if out.is_limited else BREATH
        out.max_size = max(max_bytes, out.capacity)
        out.throttle_ms = throttle_ms
        out.request = call.request
        at = out.reserve(8)
        put_int32(at + 4, <int64_t>call.correlation_id)
        if plan.flexible_header:
            out.byte(0)
        plan.writer.run(out, response)
        return out.finish_frame()
