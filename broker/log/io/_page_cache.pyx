# cython: language_level=3, embedsignature=False, binding=False, cdivision=True
"""The system calls of every request, without creating Python objects.

The compiled versions of `page_cache.Cachestat` and `page_faults.FaultCounts`, which explain them. The GIL is kept: the
calls never block, and releasing it costs as much as they do. Tests compare both versions.
"""

from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t

import os
from mmap import PAGESIZE

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/resource.h>
    #include <sys/uio.h>
    #include <unistd.h>
    #ifndef RWF_NOWAIT
      #define RWF_NOWAIT 8
    #endif
    struct warmlog_range { uint64_t offset, length; };
    struct warmlog_pages { uint64_t cached, dirty, in_writeback, evicted, recently_evicted; };
    static ssize_t warmlog_has_byte(int fd, off_t position) {
        char byte;
        struct iovec target = {&byte, 1};
        return preadv2(fd, &target, 1, position, RWF_NOWAIT);
    }
    """
    cdef struct warmlog_range:
        uint64_t offset, length
    cdef struct warmlog_pages:
        uint64_t cached
    cdef struct rusage:
        long ru_minflt, ru_majflt
    int RUSAGE_THREAD
    int getrusage(int who, rusage *used) nogil
    long syscall(long number, int fd, warmlog_range *range, warmlog_pages *pages, unsigned int flags) nogil
    ssize_t warmlog_has_byte(int fd, int64_t position) nogil

cdef enum:
    CACHESTAT = 451  # the same number on every architecture

cdef int64_t PAGE = PAGESIZE


def missing_pages(int64_t trusted, int fd, int64_t position, int64_t length):
    """Return the number of pages of a range that are not resident. Raises OSError if cachestat fails.

    The last byte of a range longer than `trusted` is read with RWF_NOWAIT, too.
    """
    cdef warmlog_range range = warmlog_range(position, length)
    cdef warmlog_pages pages
    cdef int64_t missing
    if syscall(CACHESTAT, fd, &range, &pages, 0):
        raise OSError(errno, os.strerror(errno))
    missing = -<int64_t>pages.cached
    if length > 0:
        missing += (position + length - 1) // PAGE - position // PAGE + 1
    if missing > 0:
        return missing
    return 1 if length > trusted and warmlog_has_byte(fd, position + length - 1) != 1 else 0


cdef class FaultCounts:
    """The page faults of a thread, by operation."""

    cdef readonly dict minor, major
    cdef unsigned long _thread
    cdef long _minor_before, _major_before

    def __init__(self, places):
        self.minor = dict.fromkeys(places, 0)
        self.major = dict.fromkeys(places, 0)

    def begin(self):
        """Start counting, in the calling thread."""
        cdef rusage used
        getrusage(RUSAGE_THREAD, &used)
        self._minor_before, self._major_before = used.ru_minflt, used.ru_majflt
        self._thread = PyThread_get_thread_ident()

    def end(self, where):
        """Count the faults since the last `begin` or `end` under `where`. No effect in other threads."""
        cdef rusage used
        if self._thread != PyThread_get_thread_ident():
            return
        getrusage(RUSAGE_THREAD, &used)
        if used.ru_minflt != self._minor_before:
            self.minor[where] += used.ru_minflt - self._minor_before
            self._minor_before = used.ru_minflt
        if used.ru_majflt != self._major_before:
            self.major[where] += used.ru_majflt - self._major_before
            self._major_before = used.ru_majflt

    def leave(self):
        """Stop counting."""
        self._thread = 0
