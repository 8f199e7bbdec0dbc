"""Users' SCRAM credentials, with Kafka's semantics. Source: ScramControlManager, ScramImage.

A request with many users is committed in several transactions, unlike in Kafka.
"""

from collections import Counter
from collections.abc import Mapping

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError, shortened
from warmlog.broker.api.handler import Handler
from warmlog.broker.cluster.access.credentials import UserMechanism, change_credentials
from warmlog.broker.cluster.admin import in_time
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.security.scram import MAX_NAME, ScramCredential
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.security.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramUpsertion,
    UserCredentials,
    UserResult,
)
from warmlog.protocol.scram import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, Mechanism

_BY_NUMBER: Mapping[int, Mechanism] = {each.number: each for each in MECHANISMS.values()}


class CredentialsApi:
    """Answers the requests about users' credentials."""

    def __init__(self, node: StoreNode) -> None:
        self._node = node

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            DescribeUserScramCredentialsRequest.api: self.describe,
            AlterUserScramCredentialsRequest.api: self.alter,
        }

    async def describe(
        self, request: DescribeUserScramCredentialsRequest, context: Context
    ) -> DescribeUserScramCredentialsResponse:
        """Return the mechanisms and iterations of users."""
        credentials = self._node.image.credentials
        users = Counter(request.users or {user for user, _ in credentials})
        results: list[UserCredentials] = []
        for user, times in users.items():
            await context.checkpoint()
            infos = tuple([
                CredentialInfo(mechanism=each.number, iterations=credential.iterations)
                for each in MECHANISMS.values()
                if (credential := credentials.get((user, each.name))) is not None
            ])  # fmt: skip
            error, message = ErrorCode.NONE, None
            if times > 1:
                error, message = ErrorCode.DUPLICATE_RESOURCE, shortened(f"user {user} occurs twice")
            elif not infos:
                error, message = ErrorCode.RESOURCE_NOT_FOUND, shortened(f"user {user} has no credentials")
            results.append(UserCredentials(user=user, error=error, message=message, credentials=() if error else infos))
        return DescribeUserScramCredentialsResponse(results=tuple(results))

    async def alter(
        self, request: AlterUserScramCredentialsRequest, context: Context
    ) -> AlterUserScramCredentialsResponse:
        """Delete and set credentials. A user that occurs twice is not changed."""
        times = Counter([each.user for each in (*request.deletions, *request.upsertions)])
        failures: dict[str, RequestError] = {}
        deleted: list[UserMechanism] = []
        changed: dict[UserMechanism, ScramCredential] = {}
        for each in (*request.deletions, *request.upsertions):
            await context.checkpoint()
            try:
                mechanism = _check_name(each.user, each.mechanism, times[each.user])
                key = each.user, mechanism.name
                if isinstance(each, ScramUpsertion):
                    changed[key] = _credential(each, mechanism)
                else:
                    self._check_present(key)
                    deleted.append(key)
            except RequestError as error:
                failures.setdefault(each.user, error)
        if deleted or changed:
            await context.wait(in_time(lambda: change_credentials(self._node, deleted, changed)))
        results = [_result(user, failures.get(user)) for user in times]
        return AlterUserScramCredentialsResponse(results=tuple(results))

    def _check_present(self, key: UserMechanism) -> None:
        """Raise RequestError if a credential does not exist."""
        if key not in self._node.image.credentials:
            raise RequestError(ErrorCode.RESOURCE_NOT_FOUND, f"user {key[0]} has no credential for {key[1]}")


def _check_name(user: str, number: int, times: int) -> Mechanism:
    """Return the mechanism of a change. Raises RequestError for an unknown mechanism or an invalid user name."""
    if times > 1:
        raise RequestError(ErrorCode.DUPLICATE_RESOURCE, f"user {user} occurs twice")
    if not user:
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user name is empty")
    if len(user) > MAX_NAME or "\0" in user:
        raise RequestError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"a user name has at most {MAX_NAME} characters, and no zero byte"
        )
    mechanism = _BY_NUMBER.get(number)
    if mechanism is None:
        raise RequestError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"unknown SCRAM mechanism {number}")
    return mechanism


def _credential(upsertion: ScramUpsertion, mechanism: Mechanism) -> ScramCredential:
    """Return the credential to store. Raises RequestError."""
    if not MIN_ITERATIONS <= upsertion.iterations <= MAX_ITERATIONS:
        raise RequestError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"iterations: expected {MIN_ITERATIONS} to {MAX_ITERATIONS}, not {upsertion.iterations}",
        )
    salt, salted = bytes(upsertion.salt), bytes(upsertion.salted_password)
    if not salt or len(salt) > MAX_NAME or len(salted) != mechanism.key_bytes:
        raise RequestError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"expected a salt of 1 to {MAX_NAME} bytes, and a salted password of {mechanism.key_bytes}",
        )
    return ScramCredential.of_salted(mechanism, salted, salt, upsertion.iterations)


def _result(user: str, failure: RequestError | None) -> UserResult:
    if failure is None:
        return UserResult(user=user)
    return UserResult(user=user, error=failure.code, message=shortened(str(failure)))
