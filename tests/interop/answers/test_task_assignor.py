"""Tasks assigned by this broker and by Kafka's own assignor, for the same groups."""

import pytest

from interop.kafka_task_assignor import ask
from tests.broker.groups.streams.assigning import random_group

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SEEDS = range(1000)


def test_tasks_are_assigned_as_kafka_assigns_them() -> None:
    groups = [random_group(seed) for seed in SEEDS]
    for group, answer in zip(groups, ask(groups), strict=True):
        assert group.assign() == answer.assigned
