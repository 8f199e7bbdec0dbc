"""Refusals of members' requests, and the epochs that members send to join and leave."""

from warmlog.protocol.errors import ErrorCode

JOIN = 0
LEAVE = -1


class RefusedError(Exception):
    """A refused request, with the error, message and (KIP-394) member id of its response."""

    def __init__(self, error: ErrorCode, message: str, member_id: str = "") -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.member_id = member_id


def unknown_member(group_id: str, member_id: str) -> RefusedError:
    """Return the refusal of an unknown member."""
    return RefusedError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def is_empty(text: str | None) -> bool:
    """Return whether a text is given but blank."""
    return text is not None and not text.strip()
