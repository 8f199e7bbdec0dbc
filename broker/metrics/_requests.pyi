# What the compiled twin of `measuring` offers.

from warmlog.broker.metrics.requests import Counter as Counter
from warmlog.broker.metrics.requests import Histogram as Histogram
from warmlog.broker.metrics.requests import LoopClock as LoopClock
from warmlog.broker.metrics.requests import StageHistograms as StageHistograms
from warmlog.broker.metrics.requests import wall_clock_ms as wall_clock_ms
