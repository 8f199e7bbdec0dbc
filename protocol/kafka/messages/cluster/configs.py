"""DescribeConfigs (1 to 4), AlterConfigs (0 to 2), IncrementalAlterConfigs (0 and 1), ListConfigResources (0 and 1)."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT8, STRING, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import ERROR_CODE, FAILURE, THROTTLE_TIME, refused, refused_each
from warmlog.protocol.request import Value


class ConfigResourceType(IntEnum):
    """Types of resources with settings. Unknown types are decoded as plain numbers, which the handler rejects."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """The level at which a setting's value is set."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


class ConfigOperation(IntEnum):
    """Operations on a setting. Unknown operations are decoded as plain numbers, which the handler rejects."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigType(IntEnum):
    """Value types of settings."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigQuery(Value, frozen=True, kw_only=True, gc=False):
    """A resource and the settings to describe, None for all. `resource_type` may be an unknown number."""

    resource_type: int
    name: str
    keys: tuple[str, ...] | None = None


class DescribeConfigsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the settings of topics, brokers and other resources."""

    api: ClassVar[str] = "describe_configs"
    resources: tuple[ConfigQuery, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


class ConfigSynonym(Value, frozen=True, kw_only=True, gc=False):
    """A source of a setting's value; the effective one comes first."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(Value, frozen=True, kw_only=True, gc=False):
    """The effective value of a setting, None if it is sensitive."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    is_sensitive: bool = False
    type: ConfigType = ConfigType.UNKNOWN
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None


class DescribedConfigs(Value, frozen=True, kw_only=True, gc=False):
    """The settings of one resource."""

    resource_type: int
    name: str
    configs: tuple[ConfigEntry, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeConfigsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DescribeConfigsRequest, in its order."""

    resources: tuple[DescribedConfigs, ...]


class ConfigChange(Value, frozen=True, kw_only=True, gc=False):
    """A change to a setting. `operation` may be an unknown number."""

    name: str
    value: str | None
    operation: int = ConfigOperation.SET


class ConfigAlteration(Value, frozen=True, kw_only=True, gc=False):
    """Changes to the settings of one resource."""

    resource_type: int
    name: str
    changes: tuple[ConfigChange, ...]


class AlterConfigsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Change settings. Unless `incremental`, settings that are not named are reset to their defaults."""

    api: ClassVar[str] = "alter_configs"
    resources: tuple[ConfigAlteration, ...]
    incremental: bool
    validate_only: bool = False


class AlteredConfigs(Value, frozen=True, kw_only=True, gc=False):
    """The result of changing one resource."""

    resource_type: int
    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class AlterConfigsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of AlterConfigsRequest, in its order."""

    resources: tuple[AlteredConfigs, ...]


class ListConfigResourcesRequest(Value, frozen=True, kw_only=True, gc=False):
    """List resources with settings: those of the given types, or of all types if empty."""

    api: ClassVar[str] = "list_config_resources"
    types: tuple[int, ...] = ()


class ListConfigResourcesResponse(Value, frozen=True, kw_only=True, gc=False):
    """Resources as (type, name)."""

    resources: tuple[tuple[int, str], ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


_NAME = Field("name", STRING)
_VALUE = Field("value", STRING, nullable=0)
_RESOURCE = (Field("resource_type", INT8), Field("resource_name", STRING, attr="name"))

# -- DescribeConfigs: synonyms and documentation are written as given; omit them unless requested --


def _value(entry: ConfigEntry, *_: Any) -> str | None:
    return None if entry.is_sensitive else entry.value


def _known(kind: type[IntEnum]) -> Callable[[int], Any]:
    """Return a converter from numbers to members of an enumeration, which returns unknown numbers unchanged."""
    return lambda number: kind._value2member_map_.get(number, number)


_source, _type = _known(ConfigSource), _known(ConfigType)


def _synonyms(entry: ConfigEntry, *_: Any) -> tuple[ConfigSynonym, ...]:
    if not entry.is_sensitive:
        return entry.synonyms
    return tuple([ConfigSynonym(name=synonym.name, value=None, source=synonym.source) for synonym in entry.synonyms])


DESCRIBE_REQUEST = Struct(
    Field(
        "resources",
        array(
            *_RESOURCE,
            Field("configuration_keys", Array(STRING), nullable=0, attr="keys"),
            into=ConfigQuery,
        ),
    ),
    Field("include_synonyms", BOOLEAN, since=1),
    Field("include_documentation", BOOLEAN, since=3),
    into=DescribeConfigsRequest,
)
DESCRIBE_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "results",
        array(
            *FAILURE,
            *_RESOURCE,
            Field(
                "configs",
                array(
                    _NAME,
                    Field("value", STRING, nullable=0, get=_value),
                    Field("read_only", BOOLEAN),
                    Field("config_source", INT8, since=1, default=-1, attr="source", convert=_source),
                    Field("is_sensitive", BOOLEAN),
                    Field(
                        "synonyms",
                        array(_NAME, _VALUE, Field("source", INT8, convert=_source), into=ConfigSynonym),
                        since=1,
                        get=_synonyms,
                    ),
                    Field("config_type", INT8, since=3, default=0, attr="type", convert=_type),
                    Field("documentation", STRING, since=3, nullable=0),
                    into=ConfigEntry,
                ),
            ),
            into=DescribedConfigs,
        ),
        attr="resources",
    ),
    into=DescribeConfigsResponse,
)
failed_describe = refused_each(DescribeConfigsResponse, "resources", DescribedConfigs, "resource_type", "name")

# -- AlterConfigs, IncrementalAlterConfigs --

_VALIDATE_ONLY = Field("validate_only", BOOLEAN)
ALTER_REQUEST = Struct(
    Field(
        "resources",
        array(
            *_RESOURCE,
            Field("configs", array(_NAME, _VALUE, into=ConfigChange), attr="changes"),
            into=ConfigAlteration,
        ),
    ),
    _VALIDATE_ONLY,
    into=AlterConfigsRequest,
    given=lambda _: {"incremental": False},
)
INCREMENTAL_REQUEST = Struct(
    Field(
        "resources",
        array(
            *_RESOURCE,
            Field(
                "configs",
                array(_NAME, Field("config_operation", INT8, attr="operation"), _VALUE, into=ConfigChange),
                attr="changes",
            ),
            into=ConfigAlteration,
        ),
    ),
    _VALIDATE_ONLY,
    into=AlterConfigsRequest,
    given=lambda _: {"incremental": True},
)
ALTER_RESPONSE = Struct(THROTTLE_TIME, Field("responses", array(*FAILURE, *_RESOURCE), attr="resources"))
failed_alter = refused_each(AlterConfigsResponse, "resources", AlteredConfigs, "resource_type", "name")

# -- ListConfigResources: version 0 requests client metrics subscriptions --

_TYPES_OF_FIRST_VERSION = (ConfigResourceType.CLIENT_METRICS,)
LIST_REQUEST = Struct(
    Field("resource_types", Array(INT8), since=1, attr="types"),
    into=ListConfigResourcesRequest,
    given=lambda version: {} if version else {"types": _TYPES_OF_FIRST_VERSION},
)
LIST_RESPONSE = Struct(
    THROTTLE_TIME,
    ERROR_CODE,
    Field(
        "config_resources",
        array(
            Field("resource_name", STRING, get=lambda resource, *_: resource[1]),
            Field(
                "resource_type",
                INT8,
                since=1,
                default=16,  # client metrics
                get=lambda resource, *_: resource[0],
            ),
        ),
        attr="resources",
    ),
)
failed_list = refused(ListConfigResourcesResponse)
