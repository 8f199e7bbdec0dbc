import sys
import time

from tests.cluster.simulation.world import simulate

for seed in map(int, sys.argv[1:]):
    t = time.time()
    r = simulate(seed)
    print(
        seed,
        round(time.time() - t, 1),
        "s",
        round(r.simulated_s),
        "sim s",
        r.stored,
        len(r.trace),
        "problems:",
        len(r.problems),
    )
    open(f"/tmp/sim-{seed}.trace", "w").write("\n".join(r.trace))
    for p in r.problems[:8]:
        print("   ", p[-2500:])
