"""Run Kafka's assignors in one JVM: `python -m interop.kafka_assignors` compares them with this broker's.

It prints, for 1,000 members and 10,000 partitions, the number of moved partitions and the time: for Kafka the minimum
of five runs on a warm JVM, for this broker the processor time of one run.
"""

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from interop.kafka_node import WIRE_VERSION, java
from tests.broker.groups.consumer.assigning import finished, moved
from warmlog.broker.groups.consumer.assignors import ASSIGNORS
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, TopicInfo

MEMBERS, PARTITIONS = 1000, 10_000
ID_SIZE = 16


class Question(NamedTuple):
    """The input of an assignor: its name, members in order, topics. `times`: number of runs, for timing."""

    assignor: str
    members: Mapping[str, Subscriber]
    topics: Mapping[bytes, TopicInfo]
    times: int = 1

    def line(self) -> str:
        """Return the question in the Java program's format."""
        members = {
            member_id: {
                "topics": [_text(topic_id) for topic_id in sorted(member.topics)],
                "owned": {_text(topic_id): sorted(member.owned[topic_id]) for topic_id in sorted(member.owned)},
                "instance": member.instance_id,
            }
            for member_id, member in self.members.items()
        }
        topics = {_text(topic_id): topic.partitions for topic_id, topic in self.topics.items()}
        fields = {"assignor": self.assignor, "members": members, "topics": topics, "times": self.times}
        return json.dumps(fields) + "\n"


class Answer(NamedTuple):
    """An assignment, and the time of the fastest run in nanoseconds."""

    assigned: dict[str, Assignment]
    ns: int


def ask(questions: Iterable[Question]) -> list[Answer]:
    """Run Kafka's assignors; members that they omit get an empty assignment."""
    every = list(questions)
    lines = java("warmlog.interop.Assignments", text="".join(each.line() for each in every), version=WIRE_VERSION)
    return [_answer(question, json.loads(line)) for question, line in zip(every, lines.splitlines(), strict=True)]


def _answer(question: Question, fields: Mapping[str, Mapping[str, Mapping[str, list[int]]]]) -> Answer:
    printed = fields["members"]
    assigned: dict[str, Assignment] = {
        member_id: {_id(text): frozenset(numbers) for text, numbers in printed.get(member_id, {}).items()}
        for member_id in question.members
    }
    return Answer(assigned, int(str(fields["ns"])))


def _text(topic_id: bytes) -> str:
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def _id(text: str) -> bytes:
    return urlsafe_b64decode(text + "==")


def _questions() -> Iterator[tuple[str, Question]]:
    """Return groups by kind of membership change; owners are as assigned by this broker."""
    for topic_count, kinds in ((1, 1), (100, 1), (1000, 1), (100, 3)):
        ids = [(1 << 64 | number).to_bytes(ID_SIZE, "big") for number in range(topic_count)]
        topics = {each: TopicInfo(each, each.hex(), PARTITIONS // topic_count) for each in ids}
        subscriptions = [frozenset(ids[kind::kinds]) | frozenset(ids[: topic_count // 2]) for kind in range(kinds)]
        members = {f"m{number:04}": Subscriber(subscriptions[number % kinds], {}) for number in range(MEMBERS)}
        for name, assignor in ASSIGNORS.items():
            title = f"{name}, {topic_count} topics, {kinds} subscriptions"
            yield f"{title}: first", Question(name, members, topics, 5)
            owned = finished(assignor(members, topics))
            full = {each: member._replace(owned=owned[each]) for each, member in members.items()}
            for count in (1, 10, 100):
                step = MEMBERS // count
                left = {each: full[each] for number, each in enumerate(full) if number % step}
                yield f"{title}: {count} leave", Question(name, left, topics, 5)
                new = {f"m{number * step:04}x": members[f"m{number * step:04}"] for number in range(count)}
                yield f"{title}: {count} come", Question(name, dict(sorted((full | new).items())), topics, 5)


def main() -> None:
    """Print the comparison as a table."""
    questions = dict(_questions())
    print(f"{'':50} {'moved':>7} {'Kafka':>7} {'ms':>7} {'Kafka':>7}")
    for (title, question), kafkas in zip(questions.items(), ask(questions.values()), strict=True):
        begun = time.process_time()
        ours = finished(ASSIGNORS[question.assignor](question.members, question.topics))
        taken_ms = (time.process_time() - begun) * 1e3
        moves = [moved(question.members, assigned) for assigned in (ours, kafkas.assigned)]
        print(f"{title:50} {moves[0]:7} {moves[1]:7} {taken_ms:7.1f} {kafkas.ns / 1e6:7.1f}")


if __name__ == "__main__":
    main()
