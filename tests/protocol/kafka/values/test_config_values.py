"""Requests and responses about settings, decoded to and encoded from values."""

import pytest

from tests.protocol.kafka.values.round_trip import decode_request, encode_response, expected, versions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.cluster.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredConfigs,
    ConfigAlteration,
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigQuery,
    ConfigResourceType,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
)

DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44


class TestConfigs:
    @pytest.mark.parametrize("version", versions(DESCRIBE_CONFIGS))
    def test_settings_asked_for(self, version: int) -> None:
        resources = [
            {"resource_type": 2, "resource_name": "a", "configuration_keys": ["x"]},
            {"resource_type": 99, "resource_name": "1", "configuration_keys": None},
        ]
        values = {"resources": resources, "include_synonyms": True, "include_documentation": True}
        assert decode_request(DESCRIBE_CONFIGS, version, values) == DescribeConfigsRequest(
            resources=(
                ConfigQuery(resource_type=ConfigResourceType.TOPIC, name="a", keys=("x",)),
                ConfigQuery(resource_type=99, name="1"),
            ),
            include_synonyms=True,
            include_documentation=version >= 3,
        )

    @pytest.mark.parametrize("version", versions(DESCRIBE_CONFIGS))
    def test_describe_configs_response(self, version: int) -> None:
        synonym = ConfigSynonym(name="log.x", value="0", source=ConfigSource.DEFAULT)
        entries = (
            ConfigEntry(
                name="x",
                value="1",
                source=ConfigSource.TOPIC,
                type=ConfigType.LONG,
                synonyms=(synonym,),
                documentation="d",
            ),
            ConfigEntry(name="y", value="geheim", source=ConfigSource.STATIC_BROKER, read_only=True, is_sensitive=True),
        )
        described = DescribedConfigs(resource_type=ConfigResourceType.TOPIC, name="a", configs=entries)
        config = {
            "value": None,
            "read_only": True,
            "is_sensitive": True,
            "synonyms": (),
            "config_type": 0,
            "documentation": None,
        }
        values = {"throttle_time_ms": 0, "results": [{
            "error_code": 0, "error_message": None, "resource_type": 2, "resource_name": "a",
            "configs": [
                {"name": "x", "value": "1", "read_only": False, "config_source": 1, "is_sensitive": False,
                 "synonyms": [{"name": "log.x", "value": "0", "source": 5}], "config_type": 5, "documentation": "d"},
                config | {"name": "y", "config_source": 4},
            ],
        }]}  # fmt: skip
        response = DescribeConfigsResponse(resources=(described,))
        told_values = encode_response(DESCRIBE_CONFIGS, version, response)
        wanted = expected(DESCRIBE_CONFIGS, version, values)
        if version < 3:  # a nullable string is empty if the version does not have it
            for config in (*told_values["results"][0]["configs"], *wanted["results"][0]["configs"]):
                assert not config["documentation"]
        assert told_values == wanted

    @pytest.mark.parametrize(("key", "version"), [
        (key, version) for key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS) for version in versions(key)
    ])  # fmt: skip
    def test_settings_to_change(self, key: int, version: int) -> None:
        changes = [
            {"name": "x", "value": "1", "config_operation": 2},
            {"name": "y", "value": None, "config_operation": 1},
        ]
        resource = {"resource_type": 2, "resource_name": "a", "configs": changes}
        is_incremental = key == INCREMENTAL_ALTER_CONFIGS
        operations = [ConfigOperation.APPEND, ConfigOperation.DELETE] if is_incremental else [ConfigOperation.SET] * 2
        assert decode_request(key, version, {"resources": [resource], "validate_only": True}) == AlterConfigsRequest(
            resources=(
                ConfigAlteration(
                    resource_type=ConfigResourceType.TOPIC,
                    name="a",
                    changes=(
                        ConfigChange(name="x", value="1", operation=operations[0]),
                        ConfigChange(name="y", value=None, operation=operations[1]),
                    ),
                ),
            ),
            incremental=is_incremental,
            validate_only=True,
        )
        refused = AlteredConfigs(resource_type=2, name="a", error=ErrorCode.INVALID_CONFIG, message="no")
        assert encode_response(key, version, AlterConfigsResponse(resources=(refused,)))["responses"] == (
            {"error_code": 40, "error_message": "no", "resource_type": 2, "resource_name": "a"},
        )
