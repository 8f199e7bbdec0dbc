# cython: language_level=3, embedsignature=False, binding=False, cdivision=True
"""A thread that shares the writes of a turn with the event loop, and never needs the GIL.

The event loop puts writes into a ring; whoever is free, the thread or the loop that waits for a result, claims the next
one and carries it out. Positions in the ring only grow, and `claimed` never passes `published`. The thread polls the
ring for `POLLS` before it sleeps, because waking it costs a system call.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE, PyBytes_CheckExact

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
    #include <string.h>
    #include <sys/uio.h>

    #define CAPACITY 512
    #define VECTORS 16
    #define POLLS 500  /* about 5 us */

    #if defined(__x86_64__) || defined(__i386__)
      #define warmlog_pause() __builtin_ia32_pause()
    #elif defined(__aarch64__)
      #define warmlog_pause() __asm__ volatile("yield")
    #else
      #define warmlog_pause() ((void)0)
    #endif

    typedef struct {
        int fd, count;
        off_t position;
        ssize_t written;
        _Atomic int is_done;
        struct iovec vectors[VECTORS];
    } warmlog_write;

    typedef struct {
        warmlog_write ring[CAPACITY];
        _Atomic size_t published, claimed;
        _Atomic int sleeps, awaits, stopping;
        pthread_mutex_t mutex;
        pthread_cond_t work, progress;
    } warmlog_writes;

    static void warmlog_init(warmlog_writes *self) {
        memset(self, 0, sizeof *self);
        pthread_mutex_init(&self->mutex, NULL);
        pthread_cond_init(&self->work, NULL);
        pthread_cond_init(&self->progress, NULL);
    }

    static void warmlog_destroy(warmlog_writes *self) {
        pthread_cond_destroy(&self->progress);
        pthread_cond_destroy(&self->work);
        pthread_mutex_destroy(&self->mutex);
    }

    static void warmlog_wake(warmlog_writes *self, pthread_cond_t *condition) {
        pthread_mutex_lock(&self->mutex);
        pthread_cond_signal(condition);
        pthread_mutex_unlock(&self->mutex);
    }

    /* Carry out the next write; return 0 if there is none. */
    static int warmlog_run_next(warmlog_writes *self) {
        size_t position = atomic_load(&self->claimed);
        do {
            if (position == atomic_load(&self->published)) return 0;
        } while (!atomic_compare_exchange_weak(&self->claimed, &position, position + 1));
        warmlog_write *next = &self->ring[position % CAPACITY];
        ssize_t written = pwritev(next->fd, next->vectors, next->count, next->position);
        next->written = written < 0 ? -errno : written;
        atomic_store(&next->is_done, 1);
        return 1;
    }

    static int warmlog_has_work(warmlog_writes *self) {
        for (int polls = 0; polls < POLLS; polls++) {
            if (atomic_load(&self->published) != atomic_load(&self->claimed)) return 1;
            warmlog_pause();
        }
        pthread_mutex_lock(&self->mutex);
        atomic_store(&self->sleeps, 1);
        while (atomic_load(&self->published) == atomic_load(&self->claimed) && !atomic_load(&self->stopping))
            pthread_cond_wait(&self->work, &self->mutex);
        atomic_store(&self->sleeps, 0);
        pthread_mutex_unlock(&self->mutex);
        return !atomic_load(&self->stopping);
    }

    static void warmlog_run(warmlog_writes *self) {
        while (warmlog_has_work(self))
            while (warmlog_run_next(self))
                if (atomic_load(&self->awaits)) warmlog_wake(self, &self->progress);
    }

    static void warmlog_publish(warmlog_writes *self, size_t position) {
        atomic_store(&self->published, position + 1);
        if (atomic_load(&self->sleeps)) warmlog_wake(self, &self->work);
    }

    static int warmlog_is_done(warmlog_write *write) { return atomic_load(&write->is_done); }

    static void warmlog_begin(warmlog_write *write) { atomic_store(&write->is_done, 0); }

    /* Return once a write is done, and carry out others until then. */
    static void warmlog_finish(warmlog_writes *self, warmlog_write *write) {
        int polls = 0;
        while (!warmlog_is_done(write) && polls < POLLS)
            if (!warmlog_run_next(self)) {
                polls++;
                warmlog_pause();
            }
        if (warmlog_is_done(write)) return;
        pthread_mutex_lock(&self->mutex);
        atomic_store(&self->awaits, 1);
        while (!warmlog_is_done(write)) pthread_cond_wait(&self->progress, &self->mutex);
        atomic_store(&self->awaits, 0);
        pthread_mutex_unlock(&self->mutex);
    }

    static void warmlog_stop(warmlog_writes *self) {
        atomic_store(&self->stopping, 1);
        warmlog_wake(self, &self->work);
    }
    """
    enum: CAPACITY, VECTORS
    struct iovec:
        void *iov_base
        size_t iov_len
    ctypedef struct warmlog_write:
        int fd, count
        long position
        ssize_t written
        iovec vectors[16]
    ctypedef struct warmlog_writes:
        warmlog_write ring[512]
    void warmlog_init(warmlog_writes *self)
    void warmlog_destroy(warmlog_writes *self)
    void warmlog_run(warmlog_writes *self) nogil
    void warmlog_publish(warmlog_writes *self, size_t position)
    bint warmlog_is_done(warmlog_write *write)
    void warmlog_begin(warmlog_write *write)
    void warmlog_finish(warmlog_writes *self, warmlog_write *write) nogil
    void warmlog_stop(warmlog_writes *self)


cdef class WriteThread:
    """A running thread that writes for one event loop. Call `close` at the end."""

    cdef warmlog_writes _writes
    cdef size_t _published
    cdef list _owned
    cdef object _thread

    def __cinit__(self):
        warmlog_init(&self._writes)
        self._owned = [None] * CAPACITY

    def __init__(self):
        self._thread = threading.Thread(target=self._run, name="write", daemon=True)
        self._thread.start()

    def __dealloc__(self):
        warmlog_destroy(&self._writes)

    def put(self, int fd, list buffers not None, long position):
        """Begin to write bytes and contiguous views end to end into a file; return the number for `result`.

        It is negative, and nothing has begun, if the ring is full or there are too many buffers. The file must stay
        open, and the buffers unchanged, until the result was returned.
        """
        cdef size_t number = self._published
        cdef size_t place = number % CAPACITY
        cdef warmlog_write *write = &self._writes.ring[place]
        cdef Py_ssize_t count = len(buffers)
        cdef Py_ssize_t i
        cdef Py_buffer *view
        if count > VECTORS or self._owned[place] is not None:
            return -1
        for i in range(count):
            buffer = buffers[i]
            if PyBytes_CheckExact(buffer):
                write.vectors[i].iov_base = PyBytes_AS_STRING(buffer)
                write.vectors[i].iov_len = PyBytes_GET_SIZE(buffer)
            elif PyMemoryView_Check(buffer):
                view = PyMemoryView_GET_BUFFER(buffer)
                write.vectors[i].iov_base = view.buf
                write.vectors[i].iov_len = view.len
            else:
                return -1
        write.fd = fd
        write.count = count
        write.position = position
        warmlog_begin(write)
        self._owned[place] = buffers
        self._published = number + 1
        warmlog_publish(&self._writes, number)
        return number

    def result(self, size_t number):
        """Return the bytes written, or a negative errno, once a write is done. May carry out writes meanwhile."""
        cdef size_t place = number % CAPACITY
        cdef warmlog_write *write = &self._writes.ring[place]
        if not warmlog_is_done(write):
            with nogil:
                warmlog_finish(&self._writes, write)
        self._owned[place] = None
        return write.written

    def close(self):
        """Stop the thread. Every result must have been returned."""
        warmlog_stop(&self._writes)
        self._thread.join()

    def _run(self):
        with nogil:
            warmlog_run(&self._writes)
