"""The broker's assignors, in the order of Kafka's `group.consumer.assignors`: the first is the default.

Neither considers racks, as in Kafka 4.4. Start reading in `uniform.py`.
"""

from collections.abc import Mapping

from warmlog.broker.groups.consumer.assignors.contiguous import assign_ranges
from warmlog.broker.groups.consumer.assignors.uniform import assign_uniformly
from warmlog.broker.groups.modern.assignment import Assignor

__all__ = ["ASSIGNORS"]

ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
