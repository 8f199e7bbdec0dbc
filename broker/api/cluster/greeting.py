"""Negotiate versions in the first request of a connection: hello (native) or ApiVersions (Kafka)."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from warmlog.broker.api.cluster.features import Features
from warmlog.broker.api.context import Context
from warmlog.broker.api.handler import Handler
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsRequest, ApiVersionsResponse
from warmlog.protocol.native.messages import VersionError, choose_version
from warmlog.protocol.request import HelloRequest
from warmlog.protocol.response import ErrorResponse, HelloResponse

MAX_CLIENT_LENGTH = 255  # characters of a client id, which is stored as long as the connection exists


class GreetingApi:
    """Answers hello and ApiVersions.

    `hello` is the response without the negotiated version. `api_versions` returns the versions of each Kafka API.
    """

    def __init__(
        self,
        hello: HelloResponse,
        api_versions: Callable[[ApiVersionsRequest], ApiVersionsResponse],
        features: Features,
    ) -> None:
        self._hello_response = hello
        self._versions = api_versions
        self._features = features

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {HelloRequest.api: self._hello, ApiVersionsRequest.api: self._api_versions}

    async def _hello(self, request: HelloRequest, context: Context) -> HelloResponse | ErrorResponse:
        try:
            context.session.protocol_version = choose_version(request.versions)
        except VersionError as error:
            return ErrorResponse(error=error.code, message=str(error))
        context.session.client_id = request.client[:MAX_CLIENT_LENGTH]
        return replace(self._hello_response, version=context.session.protocol_version)

    async def _api_versions(self, request: ApiVersionsRequest, _: Context) -> ApiVersionsResponse:
        hello = self._hello_response
        expected = request.cluster_id, request.node_id
        if request.error or request.cluster_id is None or expected == (hello.cluster_id, hello.node_id):
            response = self._versions(request)
        else:
            response = ApiVersionsResponse(apis=(), error=ErrorCode.REBOOTSTRAP_REQUIRED)
        if response.error is not ErrorCode.NONE:
            return response
        return replace(response, features=self._features.served, features_epoch=self._features.epoch)
