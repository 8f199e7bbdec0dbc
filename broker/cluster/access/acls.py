"""Create and delete ACLs of the cluster, from any broker. Every call returns when this broker's image has the change.

An ACL's key is derived from its content, so both changes are idempotent. A change of more ACLs than fit into one
transaction is divided into several, in order.
"""

from collections.abc import Sequence
from uuid import UUID

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import acl_id, acl_key, encode
from warmlog.broker.cluster.store import MAX_OPERATIONS, Delete, Operation, Put, StoreTransaction
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.values import StoredAcl
from warmlog.broker.security.acls import Acl

_Change = tuple[UUID, Acl | None]  # the id of an ACL, and the ACL to create, or None to delete it


async def create_acls(node: StoreNode, acls: Sequence[Acl]) -> None:
    """Create the ACLs that do not exist yet. Raises StoreError."""
    wanted = list(dict.fromkeys(acls))
    for start in range(0, len(wanted), MAX_OPERATIONS):
        await _commit(node, [(acl_id(acl), acl) for acl in wanted[start : start + MAX_OPERATIONS]])


async def delete_acls(node: StoreNode, ids: Sequence[UUID]) -> None:
    """Delete the ACLs with these ids, where they exist. Raises StoreError."""
    for start in range(0, len(ids), MAX_OPERATIONS):
        await _commit(node, [(each, None) for each in ids[start : start + MAX_OPERATIONS]])


async def _commit(node: StoreNode, changes: Sequence[_Change]) -> None:
    await node.commit(lambda image: _transaction(image, changes))


def _transaction(image: ClusterImage, changes: Sequence[_Change]) -> StoreTransaction | None:
    """Return the transaction for the changes still to be made, or None if there are none."""
    operations: list[Operation] = []
    for each_id, acl in changes:
        key = acl_key(each_id)
        if acl is not None and acl not in image.acls:
            operations.append(Put(key, encode(StoredAcl(**acl._asdict()))))
        elif acl is None and image.revision_of(key):
            operations.append(Delete(key))
    return StoreTransaction((), tuple(operations)) if operations else None
