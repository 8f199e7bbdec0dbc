# cython: language_level=3, embedsignature=False, binding=False, cdivision=True
"""Compiled version of `broker.metrics.requests`, with C numbers instead of Python objects."""

from libc.string cimport memset

cdef enum:
    MAX_BOUNDS = 32

cdef extern from *:
    """
    #include <time.h>
    static double warmlog_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec + now.tv_nsec * 1e-9;
    }
    static long long warmlog_wall_clock_ms(void) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
    }
    """
    double warmlog_now() nogil
    long long warmlog_wall_clock_ms() nogil


def wall_clock_ms():
    """See `broker.metrics.requests.wall_clock_ms`."""
    return warmlog_wall_clock_ms()


cdef class Counter:
    """See `broker.metrics.requests.Counter`."""

    cdef readonly double value

    def add(self, double amount=1):
        """Add `amount`."""
        self.value += amount


cdef class Histogram:
    """See `broker.metrics.requests.Histogram`."""

    cdef readonly tuple bounds
    cdef readonly double total
    cdef double _bounds[MAX_BOUNDS]
    cdef long long _counts[MAX_BOUNDS + 1]
    cdef int _last

    def __init__(self, tuple bounds):
        if len(bounds) > MAX_BOUNDS:
            raise ValueError(f"{len(bounds)} bounds are more than {MAX_BOUNDS}")
        self.bounds = bounds
        self.total = 0.0
        self._last = len(bounds)
        for number, bound in enumerate(bounds):
            self._bounds[number] = bound
        memset(self._counts, 0, sizeof(self._counts))

    @property
    def counts(self):
        """Return the count of each bucket; the last has no upper bound."""
        return [self._counts[number] for number in range(self._last + 1)]

    def observe(self, double seconds):
        """Count an observation."""
        self._count(seconds, 1)

    cdef void _count(self, double seconds, long long times):
        cdef int bucket = 0
        while bucket < self._last and self._bounds[bucket] < seconds:
            bucket += 1
        self._counts[bucket] += times
        self.total += seconds * times


cdef class StageHistograms:
    """See `broker.metrics.requests.StageHistograms`."""

    cdef Histogram _whole, _queue, _handle, _wait, _send

    def __init__(self, Histogram whole, Histogram queue, Histogram handle, Histogram wait, Histogram send):
        self._whole, self._queue, self._handle, self._wait, self._send = whole, queue, handle, wait, send

    def observe(self, staged, double done_at, double sent_at):
        """Count requests whose response was sent."""
        cdef double received_at = staged.received_at, begun_at = staged.begun_at, handled_at = staged.handled_at
        cdef long long count = staged.count
        self._whole._count(sent_at - received_at, count)
        self._queue._count(begun_at - received_at, count)
        self._handle._count(handled_at - begun_at, count)
        self._wait._count(done_at - handled_at, count)
        self._send._count(sent_at - done_at, count)


cdef class LoopClock:
    """See `broker.metrics.requests.LoopClock`."""

    cdef readonly object doing
    cdef readonly double began_at
    cdef readonly bint is_awake
    cdef double _limit_s
    cdef object _on_stall

    def __init__(self, double limit_s, on_stall):
        self.doing = ""
        self._limit_s = limit_s
        self._on_stall = on_stall

    def start_clock(self):
        """Do nothing: the clock runs by itself."""

    def current_time(self):
        """Return the time in seconds, and begin a new measurement."""
        return self._pass("")

    def begin(self, doing):
        """Begin a new measurement, attributed to `doing`. Returns the time in perf_counter seconds."""
        return self._pass(doing)

    def deadline_to_sleep_time(self, double deadline):
        """Return how long the loop may sleep, and note that it sleeps."""
        cdef double now = self._pass("")
        self.is_awake = False
        return deadline - now

    cdef double _pass(self, object doing) except -1:
        cdef double now = warmlog_now()
        if self.is_awake and now - self.began_at > self._limit_s:
            self._on_stall(self.began_at, now)
        self.began_at, self.is_awake, self.doing = now, True, doing
        return now
