"""The rights of a request's sender, as decided by the authorizer."""

from collections.abc import Iterable
from typing import Any, Final

from warmlog.broker.api.context import Session
from warmlog.broker.api.errors import RequestError
from warmlog.broker.security.acls import CLUSTER_NAME, Operation, ResourceType
from warmlog.broker.security.authorizer import Authorizer
from warmlog.protocol.errors import ErrorCode

# The operations that each type of resource supports. Source: org.apache.kafka.security.authorizer.AclEntry.
OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
_REFUSALS: Final = {
    ResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic"),
    ResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "group"),
    ResourceType.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "cluster"),
    ResourceType.TRANSACTIONAL_ID: (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id"),
}


class Access:
    """The current rights of a session. Make a new object for each request."""

    __slots__ = ("_authorizer", "_decisions", "revision")

    def __init__(self, authorizer: Authorizer, session: Session) -> None:
        known = authorizer.decisions(session.decisions, session.principal, session.peer[0])
        session.decisions = self._decisions = known
        self._authorizer = authorizer
        self.revision = known.revision

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether an operation on a resource is allowed."""
        return self._authorizer.allows(self._decisions, operation, resource_type, name)

    def note_writable(self, topic: str) -> None:
        """Cache that the session may write to a topic, as long as its decisions are valid."""
        self._authorizer.note_writable(self._decisions, topic)

    def topic(self, operation: Operation, name: str) -> bool:
        """Return whether an operation on a topic is allowed."""
        return self._authorizer.allows(self._decisions, operation, ResourceType.TOPIC, name)

    def group(self, operation: Operation, name: str) -> bool:
        """Return whether an operation on a group is allowed."""
        return self._authorizer.allows(self._decisions, operation, ResourceType.GROUP, name)

    def transactional_id(self, operation: Operation, name: str) -> bool:
        """Return whether an operation on a transactional id is allowed."""
        return self._authorizer.allows(self._decisions, operation, ResourceType.TRANSACTIONAL_ID, name)

    def cluster(self, operation: Operation) -> bool:
        """Return whether an operation on the cluster is allowed."""
        return self._authorizer.allows(self._decisions, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def some_topic(self, operation: Operation) -> bool:
        """Return whether an operation is allowed on at least one topic."""
        return self._authorizer.allows_some(self._decisions, operation, ResourceType.TOPIC)

    def require(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raise RequestError unless an operation is allowed."""
        if not self.may(operation, resource_type, name):
            raise refusal(operation, resource_type)

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the allowed operations on a resource as the bit field "authorized operations"."""
        supported: Iterable[Operation] = OPERATIONS[resource_type]
        return sum(1 << operation for operation in supported if self.may(operation, resource_type, name))


def refusal(operation: Operation, resource_type: ResourceType) -> RequestError:
    """Return the error for a missing right, without the name of a resource."""
    code, message = lacking(operation, resource_type).values()
    return RequestError(code, message)


def lacking(operation: Operation, resource_type: ResourceType) -> dict[str, Any]:
    """Return the fields `error` and `message` of a result for a missing right."""
    code, what = _REFUSALS[resource_type]
    return {"error": code, "message": f"not authorized: {operation.name} on the {what}"}
