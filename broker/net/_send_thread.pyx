# cython: language_level=3, embedsignature=False, binding=False, cdivision=True
"""A thread that sends bytes on non-blocking sockets, and never needs the GIL.

The event loop puts operations into a ring and takes their results back; the thread carries them out in order. Positions
in the ring only grow:

    taken            results before this position were returned by `take`
      <= done        sent by the thread, which alone advances it
      <= published   put by the event loop, which alone advances it
      <= taken + CAPACITY

The thread polls the ring for `POLLS` before it sleeps, because waking it costs a system call.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport PyObject

import threading

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <stdatomic.h>
    #include <string.h>
    #include <sys/socket.h>

    #define CAPACITY 1024
    #define WAIT 64
    #define POLLS 2000  /* about 20 us */

    #if defined(__x86_64__) || defined(__i386__)
      #define warmlog_pause() __builtin_ia32_pause()
    #elif defined(__aarch64__)
      #define warmlog_pause() __asm__ volatile("yield")
    #else
      #define warmlog_pause() ((void)0)
    #endif

    typedef struct { int fd; const char *data; size_t size; ssize_t sent; } warmlog_operation;

    typedef struct {
        warmlog_operation ring[CAPACITY];
        _Atomic size_t published, done, awaited;
        _Atomic int sleeps, stopping;
        pthread_mutex_t mutex;
        pthread_cond_t work, progress;
    } warmlog_sends;

    static void warmlog_init(warmlog_sends *self) {
        memset(self, 0, sizeof *self);
        pthread_mutex_init(&self->mutex, NULL);
        pthread_cond_init(&self->work, NULL);
        pthread_cond_init(&self->progress, NULL);
    }

    static void warmlog_destroy(warmlog_sends *self) {
        pthread_cond_destroy(&self->progress);
        pthread_cond_destroy(&self->work);
        pthread_mutex_destroy(&self->mutex);
    }

    static void warmlog_wake(warmlog_sends *self, pthread_cond_t *condition) {
        pthread_mutex_lock(&self->mutex);
        pthread_cond_signal(condition);
        pthread_mutex_unlock(&self->mutex);
    }

    static int warmlog_has_work(warmlog_sends *self, size_t position) {
        for (int polls = 0; polls < POLLS; polls++) {
            if (atomic_load(&self->published) != position) return 1;
            warmlog_pause();
        }
        pthread_mutex_lock(&self->mutex);
        atomic_store(&self->sleeps, 1);
        while (atomic_load(&self->published) == position && !atomic_load(&self->stopping))
            pthread_cond_wait(&self->work, &self->mutex);
        atomic_store(&self->sleeps, 0);
        pthread_mutex_unlock(&self->mutex);
        return atomic_load(&self->published) != position;
    }

    static void warmlog_run(warmlog_sends *self) {
        size_t position = atomic_load(&self->done);
        while (warmlog_has_work(self, position)) {
            warmlog_operation *next = &self->ring[position % CAPACITY];
            ssize_t sent = send(next->fd, next->data, next->size, MSG_DONTWAIT | MSG_NOSIGNAL);
            next->sent = sent < 0 ? -errno : sent;
            atomic_store(&self->done, ++position);
            if (atomic_load(&self->awaited) == position) warmlog_wake(self, &self->progress);
        }
    }

    static void warmlog_put(warmlog_sends *self, int fd, const char *data, size_t size) {
        size_t position = atomic_load(&self->published);
        warmlog_operation *next = &self->ring[position % CAPACITY];
        next->fd = fd;
        next->data = data;
        next->size = size;
        atomic_store(&self->published, position + 1);
        if (atomic_load(&self->sleeps)) warmlog_wake(self, &self->work);
    }

    static void warmlog_stop(warmlog_sends *self) {
        atomic_store(&self->stopping, 1);
        warmlog_wake(self, &self->work);
    }

    /* Wait until all operations before a position are done. */
    static void warmlog_await(warmlog_sends *self, size_t position) {
        pthread_mutex_lock(&self->mutex);
        atomic_store(&self->awaited, position);
        while (atomic_load(&self->done) < position)
            pthread_cond_wait(&self->progress, &self->mutex);
        atomic_store(&self->awaited, 0);
        pthread_mutex_unlock(&self->mutex);
    }

    static size_t warmlog_done(warmlog_sends *self) { return atomic_load(&self->done); }
    """
    enum: CAPACITY, WAIT
    ctypedef struct warmlog_operation:
        ssize_t sent
    ctypedef struct warmlog_sends:
        warmlog_operation ring[1024]
    void warmlog_init(warmlog_sends *self)
    void warmlog_destroy(warmlog_sends *self)
    void warmlog_run(warmlog_sends *self) nogil
    void warmlog_put(warmlog_sends *self, int fd, const char *data, size_t size) nogil
    void warmlog_stop(warmlog_sends *self) nogil
    void warmlog_await(warmlog_sends *self, size_t position) nogil
    size_t warmlog_done(warmlog_sends *self) nogil


cdef class SendThread:
    """A running thread that sends for one event loop. Call `close` at the end."""

    cdef warmlog_sends _sends
    cdef size_t _published
    cdef size_t _taken
    cdef list _owned
    cdef object _thread

    def __cinit__(self):
        warmlog_init(&self._sends)
        self._owned = [None] * CAPACITY

    def __init__(self):
        self._thread = threading.Thread(target=self._run, name="send", daemon=True)
        self._thread.start()

    def __dealloc__(self):
        warmlog_destroy(&self._sends)

    def __len__(self):
        return self._published - self._taken

    def put(self, owner, int fd, bytes data not None):
        """Send bytes on a socket; return False, and do nothing, if the ring is full.

        The socket must stay open until `take` has returned the result.
        """
        if self._published - self._taken == CAPACITY:
            return False
        self._owned[self._published % CAPACITY] = (owner, data)
        warmlog_put(&self._sends, fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self._published += 1
        return True

    def take(self):
        """Return (owner, bytes sent or negative errno) of the operations done since the last call."""
        cdef size_t done = warmlog_done(&self._sends)
        cdef size_t place
        found = []
        while self._taken < done:
            place = self._taken % CAPACITY
            owner, _ = self._owned[place]
            self._owned[place] = None
            found.append((owner, self._sends.ring[place].sent))
            self._taken += 1
        return found

    def wait(self):
        """Wait until the next WAIT operations are done, or all that were put: half a millisecond for small replies."""
        with nogil:
            warmlog_await(&self._sends, min(self._published, self._taken + WAIT))

    def close(self):
        """Stop the thread once everything is done."""
        warmlog_stop(&self._sends)
        self._thread.join()

    def _run(self):
        with nogil:
            warmlog_run(&self._sends)
