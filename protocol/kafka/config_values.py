"""Requests and responses about settings of topics, brokers and other resources."""

from enum import IntEnum
from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import Value


class ResourceType(IntEnum):
    """Types of resources with settings. Unknown ones are decoded as plain numbers, which the handler rejects."""

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
    """Operations on a setting. Unknown ones are decoded as plain numbers, which the handler rejects."""

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
