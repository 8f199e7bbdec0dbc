"""Static members: an instance id belongs to one member at a time, which may return with another member id.

Source: Kafka's GroupMetadataManager (4.4: throwIfStaticMemberIsUnknown, throwIfInstanceIdIsFenced,
throwIfInstanceIdIsUnreleased).
"""

from collections.abc import Mapping

from warmlog.broker.groups.modern.refusals import RefusedError
from warmlog.protocol.errors import ErrorCode

LEAVE_FOR_RESTART = -2  # the epoch of a static member that leaves and will return with another member id


def check_instance(static: Mapping[str, str], instance_id: str, member_id: str) -> None:
    """Refuse a member whose instance id is unknown, or belongs to another member. Raises RefusedError.

    `static`: member ids by instance id.
    """
    owner = static.get(instance_id)
    if owner is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if owner != member_id:
        raise RefusedError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {owner}.",
        )


def unreleased(instance_id: str, member_id: str, owner: str) -> RefusedError:
    """Return the refusal of a new member while another process uses its instance id."""
    return RefusedError(
        ErrorCode.UNRELEASED_INSTANCE_ID,
        f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id is "
        f"owned by {owner} member.",
    )
