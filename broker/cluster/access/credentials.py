"""Users' credentials in the store."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from secrets import token_bytes
from typing import Final, TypeAlias

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import LOGIN_SECRET_KEY, encode, scram_key
from warmlog.broker.cluster.store import Compare, Delete, Operation, Put, StoreTransaction
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.values import LoginSecret
from warmlog.broker.security.sasl import Users
from warmlog.broker.security.scram import ScramCredential, Shape, TokenLookup, UnknownUsers

PER_TRANSACTION: Final = 100
SECRET_BYTES: Final = 32
NONE: Final = Counter[Shape]()

UserMechanism: TypeAlias = tuple[str, str]


def users_of(node: StoreNode, tokens: TokenLookup | None = None) -> Users:
    """Return the users in a broker's image. Until the first user is created, each broker has salts of its own.

    `tokens` finds delegation tokens, where these are enabled.
    """
    own = token_bytes(SECRET_BYTES)
    return Users(
        lookup=lambda user, mechanism: node.image.credentials.get((user, mechanism)),
        unknown=UnknownUsers(
            lambda: node.image.login_secret or own, lambda mechanism: node.image.credential_shapes.get(mechanism, NONE)
        ),
        tokens=tokens,
    )


async def change_credentials(
    node: StoreNode, deleted: Collection[UserMechanism], changed: Mapping[UserMechanism, ScramCredential]
) -> None:
    """Delete and set credentials, up to PER_TRANSACTION of them at a time."""
    for step in steps(deleted, changed):
        await node.commit(partial(transaction, operations=step))


def steps(
    deleted: Collection[UserMechanism], changed: Mapping[UserMechanism, ScramCredential]
) -> Iterator[list[Operation]]:
    """Return the changes of each transaction."""
    operations: list[Operation] = [Delete(scram_key(*each)) for each in deleted]
    operations += [Put(scram_key(*key), encode(credential)) for key, credential in changed.items()]
    for start in range(0, len(operations), PER_TRANSACTION):
        yield operations[start : start + PER_TRANSACTION]


def transaction(image: ClusterImage, operations: list[Operation]) -> StoreTransaction:
    """Return the transaction of a step; the first one also writes the secret that unknown users' salts come from."""
    if image.login_secret:
        return StoreTransaction((), tuple(operations))
    secret = Put(LOGIN_SECRET_KEY, encode(LoginSecret(secret=token_bytes(SECRET_BYTES))))
    return StoreTransaction((Compare(LOGIN_SECRET_KEY, image.revision_of(LOGIN_SECRET_KEY)),), (*operations, secret))
