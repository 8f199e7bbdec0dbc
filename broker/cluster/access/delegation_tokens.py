"""Delegation tokens in the store."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import trio
from msgspec.structs import replace

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import encode, token_key
from warmlog.broker.cluster.store import Compare, Delete, Put, StoreError, StoreTransaction
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.security.delegation_tokens import DelegationToken

PER_TRANSACTION: Final = 100


async def create_token(node: StoreNode, token_id: str, token: DelegationToken) -> None:
    """Write a new token. Raises StoreError."""
    await node.commit(lambda image: None if token_id in image.delegation_tokens else _put(image, token_id, token))


async def change_expiry(node: StoreNode, token_id: str, expires_at: int) -> None:
    """Change the expiry time of a token if it still exists. Raises StoreError."""

    def change(image: ClusterImage) -> StoreTransaction | None:
        token = image.delegation_tokens.get(token_id)
        if token is None or token.expires_at == expires_at:
            return None
        return _put(image, token_id, replace(token, expires_at=expires_at))

    await node.commit(change)


async def delete_tokens(node: StoreNode, ids: Iterable[str]) -> None:
    """Delete tokens; tokens that no longer exist are ignored. Raises StoreError."""
    left = list(ids)
    for start in range(0, len(left), PER_TRANSACTION):
        step = left[start : start + PER_TRANSACTION]
        await node.commit(partial(_delete, ids=step))


async def delete_expired_tokens(node: StoreNode, every_s: float, clock_ms: Callable[[], int]) -> None:
    """Delete expired tokens periodically, on the controller, until cancelled."""
    while True:
        await trio.sleep(every_s)
        controller, now_ms = node.image.controller, clock_ms()
        if controller is None or controller.broker != node.id:
            continue
        expired = [name for name, token in node.image.delegation_tokens.items() if token.has_expired(now_ms)]
        try:
            await delete_tokens(node, expired)
        except StoreError:
            continue  # the store is unavailable, which others report


def _put(image: ClusterImage, token_id: str, token: DelegationToken) -> StoreTransaction:
    key = token_key(token_id)
    return StoreTransaction((Compare(key, image.revision_of(key)),), (Put(key, encode(token)),))


def _delete(image: ClusterImage, ids: Iterable[str]) -> StoreTransaction | None:
    operations = tuple([Delete(token_key(each)) for each in ids if each in image.delegation_tokens])
    return StoreTransaction((), operations) if operations else None
