"""Set and remove quotas in the cluster's store, from any broker."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import encode, quotas_key
from warmlog.broker.cluster.store import Compare, Delete, Operation, Put, StoreTransaction
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.values import StoredQuotas
from warmlog.broker.security.quotas.entities import QuotaEntity

ENTITIES_PER_STEP = 100  # changed in one transaction, within the store's limit
QuotaChanges: TypeAlias = tuple[QuotaEntity, Mapping[str, float | None]]  # None removes a quota


async def change_quotas(node: StoreNode, changes: Sequence[QuotaChanges]) -> None:
    """Change the quotas of distinct entities. Returns when this broker's image has the changes.

    Changes of more entities than fit into one transaction are made in several, in order. Raises StoreError.
    """
    for start in range(0, len(changes), ENTITIES_PER_STEP):
        await _commit(node, changes[start : start + ENTITIES_PER_STEP])


async def _commit(node: StoreNode, changes: Sequence[QuotaChanges]) -> None:
    await node.commit(lambda image: _transaction(image, changes))


def _transaction(image: ClusterImage, changes: Sequence[QuotaChanges]) -> StoreTransaction | None:
    """Return the transaction for the changes still to be made, or None if there are none."""
    compares: list[Compare] = []
    operations: list[Operation] = []
    for entity, changed in changes:
        old, key = image.quotas.of(entity), quotas_key(entity)
        new = {name: value for name, value in {**old, **changed}.items() if value is not None}
        if new != old:
            compares.append(Compare(key, image.revision_of(key)))
            operations.append(Put(key, encode(StoredQuotas(values=new))) if new else Delete(key))
    return StoreTransaction(tuple(compares), tuple(operations)) if operations else None
