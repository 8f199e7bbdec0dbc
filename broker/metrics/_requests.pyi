# What the compiled twin of `measuring` offers.

from broker.metrics.requests import Counter as Counter
from broker.metrics.requests import Histogram as Histogram
from broker.metrics.requests import LoopClock as LoopClock
from broker.metrics.requests import StageHistograms as StageHistograms
from broker.metrics.requests import wall_clock_ms as wall_clock_ms
