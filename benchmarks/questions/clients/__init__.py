"""What producers at full speed wait for: `producer_waits` is the program, `producers` has the clients it observes.

`thread_times` reads from the kernel how long threads ran, and how long they were ready without a core.
"""
