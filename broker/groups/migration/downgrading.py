"""The generation of a classic group that replaces a consumer group.

Source: Kafka's ClassicGroup.fromConsumerGroup.
"""

from warmlog.broker.groups.classic.generation import Generation
from warmlog.broker.groups.classic.members import Member
from warmlog.broker.groups.consumer.effects import ClassicMember, Downgrade
from warmlog.broker.groups.consumer.members.classic import serialized
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.protocol.groups import CONSUMER_PROTOCOL_TYPE


def generation_of(downgrade: Downgrade, topics: Topics) -> Generation:
    """Return the generation of the remaining members, with the partitions of their targets."""
    generation = Generation()
    generation.number = downgrade.generation
    generation.protocol_type = CONSUMER_PROTOCOL_TYPE
    for member_id, converted in downgrade.members.items():
        generation.members.add(_member(member_id, converted))
    generation.choose_protocol()
    assignments = {}
    for member in generation.members:
        assigned = downgrade.members[member.member_id].assignment
        holding = {topic_id: dict.fromkeys(sorted(numbers), 0) for topic_id, numbers in assigned.items()}
        metadata = member.metadata(generation.protocol_name)
        assignments[member.member_id] = serialized(holding, metadata, topics)
    generation.members.assign(assignments)
    return generation


def _member(member_id: str, member: ClassicMember) -> Member:
    metadata = member.metadata
    assert metadata.classic is not None, "a classic group has members of the classic protocol"
    return Member(
        member_id=member_id,
        instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        holder=metadata.client_host.removeprefix("/"),
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        session_timeout_ms=metadata.classic.session_timeout_ms,
        protocols=metadata.classic.protocols,
    )
