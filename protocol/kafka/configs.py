"""DescribeConfigs (1 to 4), AlterConfigs (0 to 2), IncrementalAlterConfigs (0 and 1), ListConfigResources (0 and 1).

Owns: the tables of these messages, and how they meet the values. Must not know: which settings there are.
"""

from typing import Any

from protocol.kafka.admin_values import ListConfigResourcesRequest, ListConfigResourcesResponse
from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.schema import BOOLEAN, INT8, INT16, INT32, STRING, Array, Field, Struct, array
from protocol.kafka.values import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredConfigs,
    ConfigAlteration,
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigQuery,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
    ResourceType,
    TopicNames,
)
from protocol.response import ErrorResponse

_FIRST_LIST_WITH_TYPES = 1
_TYPES_OF_FIRST_LIST = (ResourceType.CLIENT_METRICS,)

DESCRIBE_REQUEST = Struct(
    Field(
        "resources",
        array(
            Field("resource_type", INT8),
            Field("resource_name", STRING),
            Field("configuration_keys", Array(STRING), nullable=0),
        ),
    ),
    Field("include_synonyms", BOOLEAN, since=1),
    Field("include_documentation", BOOLEAN, since=3),
)
_SYNONYM = (Field("name", STRING), Field("value", STRING, nullable=0), Field("source", INT8))
_CONFIG = (
    Field("name", STRING),
    Field("value", STRING, nullable=0),
    Field("read_only", BOOLEAN),
    Field("config_source", INT8, since=1, default=-1),
    Field("is_sensitive", BOOLEAN),
    Field("synonyms", array(*_SYNONYM), since=1),
    Field("config_type", INT8, since=3, default=0),
    Field("documentation", STRING, since=3, nullable=0),
)
DESCRIBE_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field(
        "results",
        array(
            Field("error_code", INT16),
            Field("error_message", STRING, nullable=0),
            Field("resource_type", INT8),
            Field("resource_name", STRING),
            Field("configs", array(*_CONFIG)),
        ),
    ),
)
ALTER_REQUEST = Struct(
    Field(
        "resources",
        array(
            Field("resource_type", INT8),
            Field("resource_name", STRING),
            Field("configs", array(Field("name", STRING), Field("value", STRING, nullable=0))),
        ),
    ),
    Field("validate_only", BOOLEAN),
)
INCREMENTAL_REQUEST = Struct(
    Field(
        "resources",
        array(
            Field("resource_type", INT8),
            Field("resource_name", STRING),
            Field(
                "configs",
                array(Field("name", STRING), Field("config_operation", INT8), Field("value", STRING, nullable=0)),
            ),
        ),
    ),
    Field("validate_only", BOOLEAN),
)
ALTER_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field(
        "responses",
        array(
            Field("error_code", INT16),
            Field("error_message", STRING, nullable=0),
            Field("resource_type", INT8),
            Field("resource_name", STRING),
        ),
    ),
)
LIST_REQUEST = Struct(Field("resource_types", Array(INT8), since=1))
LIST_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field(
        "config_resources",
        array(
            Field("resource_name", STRING),
            Field("resource_type", INT8, since=1, default=ResourceType.CLIENT_METRICS),
        ),
    ),
)


def decode_describe(reader: Reader, version: int, _: TopicNames) -> DescribeConfigsRequest:
    """Settings asked for."""
    values = DESCRIBE_REQUEST.read(reader, version)
    return DescribeConfigsRequest(
        resources=tuple(
            [
                ConfigQuery(
                    resource_type=asked["resource_type"], name=asked["resource_name"], keys=asked["configuration_keys"]
                )
                for asked in values["resources"]
            ]
        ),
        include_synonyms=values["include_synonyms"],
        include_documentation=values["include_documentation"],
    )


def encode_describe(writer: Writer, version: int, _: DescribeConfigsRequest, response: DescribeConfigsResponse) -> None:
    """Settings as they are. Synonyms and documentation are written as given: leave out what was not asked for."""
    results = list(map(_described_fields, response.resources))
    DESCRIBE_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "results": results})


def failed_describe(request: DescribeConfigsRequest, error: ErrorResponse) -> DescribeConfigsResponse:
    """The reply where the request failed as a whole."""
    return DescribeConfigsResponse(
        resources=tuple(
            [
                DescribedConfigs(
                    resource_type=asked.resource_type, name=asked.name, error=error.error, message=error.message
                )
                for asked in request.resources
            ]
        )
    )


def _described_fields(described: DescribedConfigs) -> dict[str, Any]:
    return {
        "error_code": described.error,
        "error_message": described.message,
        "resource_type": described.resource_type,
        "resource_name": described.name,
        "configs": list(map(_entry_fields, described.configs)),
    }


def _entry_fields(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": None if entry.is_sensitive else entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": entry.is_sensitive,
        "synonyms": [
            {"name": one.name, "value": None if entry.is_sensitive else one.value, "source": one.source}
            for one in entry.synonyms
        ],
        "config_type": entry.type,
        "documentation": entry.documentation,
    }


def decode_alter(reader: Reader, version: int, _: TopicNames) -> AlterConfigsRequest:
    """All settings of resources anew."""
    return _alteration(ALTER_REQUEST.read(reader, version), incremental=False)


def decode_incremental(reader: Reader, version: int, _: TopicNames) -> AlterConfigsRequest:
    """Single changes to resources' settings."""
    return _alteration(INCREMENTAL_REQUEST.read(reader, version), incremental=True)


def _alteration(values: dict[str, Any], *, incremental: bool) -> AlterConfigsRequest:
    return AlterConfigsRequest(
        resources=tuple(
            [
                ConfigAlteration(
                    resource_type=asked["resource_type"],
                    name=asked["resource_name"],
                    changes=tuple(map(_change, asked["configs"])),
                )
                for asked in values["resources"]
            ]
        ),
        incremental=incremental,
        validate_only=values["validate_only"],
    )


def _change(config: dict[str, Any]) -> ConfigChange:
    return ConfigChange(
        name=config["name"], value=config["value"], operation=config.get("config_operation", ConfigOperation.SET)
    )


def encode_alter(writer: Writer, version: int, _: AlterConfigsRequest, response: AlterConfigsResponse) -> None:
    """What became of the changes; the replies to both kinds of request are laid out alike."""
    responses = [
        {
            "error_code": altered.error,
            "error_message": altered.message,
            "resource_type": altered.resource_type,
            "resource_name": altered.name,
        }
        for altered in response.resources
    ]
    ALTER_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "responses": responses})


def failed_alter(request: AlterConfigsRequest, error: ErrorResponse) -> AlterConfigsResponse:
    """The reply where the request failed as a whole."""
    return AlterConfigsResponse(
        resources=tuple(
            [
                AlteredConfigs(
                    resource_type=asked.resource_type, name=asked.name, error=error.error, message=error.message
                )
                for asked in request.resources
            ]
        )
    )


def decode_list(reader: Reader, version: int, _: TopicNames) -> ListConfigResourcesRequest:
    """Read which types are asked for; version 0 asks for client metrics subscriptions."""
    types = LIST_REQUEST.read(reader, version)["resource_types"]
    return ListConfigResourcesRequest(types=types if version >= _FIRST_LIST_WITH_TYPES else _TYPES_OF_FIRST_LIST)


def encode_list(
    writer: Writer, version: int, _: ListConfigResourcesRequest, response: ListConfigResourcesResponse
) -> None:
    """Write the resources."""
    resources = [{"resource_type": kind, "resource_name": name} for kind, name in response.resources]
    values = {
        "throttle_time_ms": writer.throttle_ms,
        "error_code": response.error,
        "config_resources": resources,
    }
    LIST_RESPONSE.write(writer, version, values)


def failed_list(_: ListConfigResourcesRequest, error: ErrorResponse) -> ListConfigResourcesResponse:
    """Refuse the request."""
    return ListConfigResourcesResponse(error=error.error, message=error.message)
