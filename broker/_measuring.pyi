# What the compiled twin of `measuring` offers.

from broker.measuring import Counter as Counter
from broker.measuring import Histogram as Histogram
from broker.measuring import LoopClock as LoopClock
from broker.measuring import StageHistograms as StageHistograms
