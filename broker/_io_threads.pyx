# cython: language_level=3, embedsignature=False, binding=False, cdivision=True
"""Threads that carry out system calls for the event loop, and never need the GIL.

The event loop puts operations into a ring and takes their results back. Positions in the ring only grow:

    number           an operation; its place is free again once its result was returned
      <= claimed     taken by the thread, or by a loop that waits for a result and helps
      <= published   shown to the thread by the event loop, which alone advances it
      <= put         by the event loop

The thread polls the ring for a while before it sleeps, because waking it costs a system call. For the same reason
writes are published in groups: a thread that finds one at a time sleeps between two of them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE

import threading

cdef extern from "Python.h":
    ctypedef struct Py_buffer:
        char *buf
        Py_ssize_t len
    bint PyMemoryView_Check(object)
    Py_buffer *PyMemoryView_GET_BUFFER(object)

cdef extern from *:
    """
    #define _GNU_SOURCE
    #include <errno.h>
    #include <pthread.h>
    #include <stdatomic.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/uio.h>

    #if defined(__x86_64__) || defined(__i386__)
      #define ring_pause() __builtin_ia32_pause()
    #elif defined(__aarch64__)
      #define ring_pause() __asm__ volatile("yield")
    #else
      #define ring_pause() ((void)0)
    #endif

    typedef struct {
        int fd, count;
        off_t position; /* in a file; negative for a socket */
        struct iovec *vectors;
        ssize_t result; /* bytes, or a negative errno */
        _Atomic int is_done;
    } ring_operation;

    typedef struct {
        size_t capacity;
        int polls;
        ring_operation *operations;
        struct iovec *vectors;
        _Atomic size_t published, claimed, awaited; /* awaited: a number + 1, or 0 */
        _Atomic int sleeps, stopping;
        pthread_mutex_t mutex;
        pthread_cond_t work, progress;
    } ring;

    static int ring_init(ring *self, size_t capacity, size_t vectors, int polls) {
        memset(self, 0, sizeof *self);
        pthread_mutex_init(&self->mutex, NULL);
        pthread_cond_init(&self->work, NULL);
        pthread_cond_init(&self->progress, NULL);
        self->capacity = capacity;
        self->polls = polls;
        self->operations = calloc(capacity, sizeof *self->operations);
        self->vectors = calloc(capacity * vectors, sizeof *self->vectors);
        if (!self->operations || !self->vectors) return 0;
        for (size_t slot = 0; slot < capacity; slot++)
            self->operations[slot].vectors = self->vectors + slot * vectors;
        return 1;
    }

    static void ring_destroy(ring *self) {
        free(self->vectors);
        free(self->operations);
        pthread_cond_destroy(&self->progress);
        pthread_cond_destroy(&self->work);
        pthread_mutex_destroy(&self->mutex);
    }

    static ring_operation *ring_at(ring *self, size_t number) { return &self->operations[number % self->capacity]; }

    static int ring_is_done(ring *self, size_t number) { return atomic_load(&ring_at(self, number)->is_done); }

    /* The sleeper either waits already or checks its condition after this; it then finds the mutex free. */
    static void ring_wake(ring *self, pthread_cond_t *condition) {
        pthread_mutex_lock(&self->mutex);
        pthread_mutex_unlock(&self->mutex);
        pthread_cond_signal(condition);
    }

    static void ring_put(ring *self, size_t number) { atomic_store(&ring_at(self, number)->is_done, 0); }

    static void ring_publish(ring *self, size_t end) {
        atomic_store(&self->published, end);
        if (atomic_load(&self->sleeps) && atomic_exchange(&self->sleeps, 0)) ring_wake(self, &self->work);
    }

    /* Carry out the next operation; return 0 if there is none. */
    static int ring_run_next(ring *self) {
        size_t number = atomic_load(&self->claimed);
        do {
            if (number == atomic_load(&self->published)) return 0;
        } while (!atomic_compare_exchange_weak(&self->claimed, &number, number + 1));
        ring_operation *next = ring_at(self, number);
        ssize_t result = next->position < 0
            ? send(next->fd, next->vectors->iov_base, next->vectors->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL)
            : pwritev(next->fd, next->vectors, next->count, next->position);
        next->result = result < 0 ? -errno : result;
        atomic_store(&next->is_done, 1);
        if (atomic_load(&self->awaited) == number + 1) ring_wake(self, &self->progress);
        return 1;
    }

    /* Wait for an operation; return 0 at the end. A loop that helps may claim it first, so there may be none. */
    static int ring_wait(ring *self) {
        for (int polls = 0; polls < self->polls; polls++) {
            if (atomic_load(&self->published) != atomic_load(&self->claimed)) return 1;
            ring_pause();
        }
        pthread_mutex_lock(&self->mutex);
        for (;;) {
            atomic_store(&self->sleeps, 1);
            if (atomic_load(&self->published) != atomic_load(&self->claimed) || atomic_load(&self->stopping)) break;
            pthread_cond_wait(&self->work, &self->mutex);
        }
        atomic_store(&self->sleeps, 0);
        pthread_mutex_unlock(&self->mutex);
        return !atomic_load(&self->stopping) || atomic_load(&self->published) != atomic_load(&self->claimed);
    }

    static void ring_run(ring *self) {
        while (ring_wait(self))
            while (ring_run_next(self));
    }

    /* Carry out other operations until one is done, or there are none for a while. */
    static void ring_help(ring *self, size_t number) {
        for (int polls = 0; !ring_is_done(self, number) && polls < self->polls;)
            if (!ring_run_next(self)) {
                polls++;
                ring_pause();
            }
    }

    static void ring_await(ring *self, size_t number) {
        pthread_mutex_lock(&self->mutex);
        atomic_store(&self->awaited, number + 1);
        while (!ring_is_done(self, number)) pthread_cond_wait(&self->progress, &self->mutex);
        atomic_store(&self->awaited, 0);
        pthread_mutex_unlock(&self->mutex);
    }

    static void ring_stop(ring *self) {
        atomic_store(&self->stopping, 1);
        ring_wake(self, &self->work);
    }
    """
    struct iovec:
        void *iov_base
        size_t iov_len
    ctypedef struct ring_operation:
        int fd, count
        long position
        iovec *vectors
        ssize_t result
    ctypedef struct ring:
        pass
    bint ring_init(ring *self, size_t capacity, size_t vectors, int polls)
    void ring_destroy(ring *self)
    ring_operation *ring_at(ring *self, size_t number)
    bint ring_is_done(ring *self, size_t number) nogil
    void ring_put(ring *self, size_t number)
    void ring_publish(ring *self, size_t end)
    void ring_run(ring *self) nogil
    void ring_help(ring *self, size_t number) nogil
    void ring_await(ring *self, size_t number) nogil
    void ring_stop(ring *self)

cdef enum:
    SENDS = 1024
    SEND_POLLS = 2000  # about 20 us
    WAIT = 64
    WRITES = 512
    WRITE_POLLS = 500  # about 5 us
    VECTORS = 16  # of a write
    GROUP = 16  # writes published together: the kernel's part of them takes about 50 us


cdef class RingThread:
    """A running thread with a ring. Call `close` at the end."""

    cdef ring _ring
    cdef size_t _capacity
    cdef size_t _put  # operations that were put
    cdef size_t _published
    cdef list _owned  # what each operation in the ring needs until its result was returned
    cdef object _thread

    cdef int start(self, str name, size_t capacity, size_t vectors, int polls) except -1:
        self._capacity = capacity
        self._owned = [None] * capacity
        if not ring_init(&self._ring, capacity, vectors, polls):
            raise MemoryError
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        return 0

    def __dealloc__(self):
        if self._owned is not None:
            ring_destroy(&self._ring)

    cdef ring_operation *free_operation(self):
        """Return where to put the next operation, or NULL if the ring is full."""
        if self._owned[self._put % self._capacity] is not None:
            return NULL
        return ring_at(&self._ring, self._put)

    cdef size_t add(self, owned, size_t group):
        """Have the next operation carried out, at the latest with `group - 1` others; return its number."""
        cdef size_t number = self._put
        self._owned[number % self._capacity] = owned
        ring_put(&self._ring, number)
        self._put = number + 1
        if self._put - self._published >= group:
            self.publish()
        return number

    cpdef publish(self):
        """Let the thread have all operations that were put."""
        if self._published < self._put:
            self._published = self._put
            ring_publish(&self._ring, self._put)

    def close(self):
        """Stop the thread once everything is done."""
        self.publish()
        ring_stop(&self._ring)
        self._thread.join()

    def _run(self):
        with nogil:
            ring_run(&self._ring)


cdef class SendThread(RingThread):
    """Sends bytes on non-blocking sockets in the order in which they were put."""

    cdef size_t _taken

    def __cinit__(self):
        self.start("send", SENDS, 1, SEND_POLLS)

    def __len__(self):
        return self._published - self._taken

    def put(self, owner, int fd, bytes data not None):
        """Send bytes on a socket; return False, and do nothing, if the ring is full.

        The socket must stay open until `take` has returned the result.
        """
        cdef ring_operation *operation = self.free_operation()
        if operation == NULL:
            return False
        operation.fd = fd
        operation.position = -1
        operation.vectors.iov_base = PyBytes_AS_STRING(data)
        operation.vectors.iov_len = PyBytes_GET_SIZE(data)
        self.add((owner, data), 1)
        return True

    def take(self):
        """Return (owner, bytes sent or negative errno) of the operations done since the last call."""
        results = []
        while self._taken < self._published and ring_is_done(&self._ring, self._taken):
            owner, _ = self._owned[self._taken % SENDS]
            self._owned[self._taken % SENDS] = None
            results.append((owner, ring_at(&self._ring, self._taken).result))
            self._taken += 1
        return results

    def wait(self):
        """Wait until the next WAIT operations are done, or all that were put: half a millisecond for small replies."""
        cdef size_t end = min(self._published, self._taken + WAIT)
        if end > self._taken:
            with nogil:
                ring_await(&self._ring, end - 1)


cdef class WriteThread(RingThread):
    """Shares writes to files with the event loop: whoever is free carries out the next one."""

    def __cinit__(self):
        self.start("write", WRITES, VECTORS, WRITE_POLLS)

    def put(self, int fd, tuple buffers not None, long position):
        """Begin to write bytes and contiguous views end to end into a file; return the number for `result`.

        The thread has it once GROUP writes were put, or at the next `publish` or `result`. The number is negative, and
        nothing has begun, if the ring is full or there are too many buffers. The file must stay open, and the buffers
        unchanged, until the result was returned.
        """
        cdef ring_operation *operation = self.free_operation()
        cdef Py_ssize_t count = len(buffers)
        cdef Py_ssize_t i
        cdef Py_buffer *view
        if operation == NULL or count > VECTORS:
            return -1
        for i in range(count):
            buffer = buffers[i]
            if PyBytes_CheckExact(buffer):
                operation.vectors[i].iov_base = PyBytes_AS_STRING(buffer)
                operation.vectors[i].iov_len = PyBytes_GET_SIZE(buffer)
            elif PyMemoryView_Check(buffer):
                view = PyMemoryView_GET_BUFFER(buffer)
                operation.vectors[i].iov_base = view.buf
                operation.vectors[i].iov_len = view.len
            else:
                return -1
        operation.fd = fd
        operation.count = count
        operation.position = position
        return self.add(buffers, GROUP)

    def result(self, size_t number):
        """Return the bytes written, or a negative errno, once a write is done. May carry out writes meanwhile."""
        if number >= self._published:
            self.publish()
        if not ring_is_done(&self._ring, number):
            with nogil:
                ring_help(&self._ring, number)
                if not ring_is_done(&self._ring, number):
                    ring_await(&self._ring, number)
        self._owned[number % WRITES] = None
        return ring_at(&self._ring, number).result
