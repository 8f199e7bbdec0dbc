"""DescribeClientQuotas, AlterClientQuotas (0 and 1)."""

from typing import Any, ClassVar, TypeAlias

from warmlog.protocol.kafka.codec.schema import BOOLEAN, FLOAT64, INT8, STRING, Field, Struct, array
from warmlog.protocol.kafka.messages.common import FAILURE, THROTTLE_TIME, Failure, refused, refused_each
from warmlog.protocol.request import Value

Entity: TypeAlias = tuple[tuple[str, str | None], ...]  # types and names, None naming the default


class QuotaFilter(Value, frozen=True, kw_only=True, gc=False):
    """A filter for quota entities of one type; `match_type`: 0 exact name, 1 default entity, 2 any entity."""

    entity_type: str
    match_type: int
    match: str | None


class DescribeClientQuotasRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the quotas of entities that match all filters; with `strict`, only entities without further types."""

    api: ClassVar[str] = "describe_client_quotas"
    filters: tuple[QuotaFilter, ...]
    strict: bool


class EntityQuotas(Value, frozen=True, kw_only=True, gc=False):
    """The quotas of an entity as names and values."""

    entity: Entity
    values: tuple[tuple[str, float], ...]


class DescribeClientQuotasResponse(Failure, frozen=True, kw_only=True, gc=False):
    """The quotas of the entities that match, or an error in the filters."""

    entries: tuple[EntityQuotas, ...] | None = None


class QuotaChange(Value, frozen=True, kw_only=True, gc=False):
    """A quota to set or to remove."""

    key: str
    value: float
    remove: bool


class QuotaAlteration(Value, frozen=True, kw_only=True, gc=False):
    """Changes to the quotas of an entity."""

    entity: Entity
    changes: tuple[QuotaChange, ...]


class AlterClientQuotasRequest(Value, frozen=True, kw_only=True, gc=False):
    """Set and remove quotas; with `validate_only`, only validate the changes."""

    api: ClassVar[str] = "alter_client_quotas"
    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool


class AlteredQuotas(Failure, frozen=True, kw_only=True, gc=False):
    """The result of an alteration."""

    entity: Entity


class AlterClientQuotasResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per alteration, in the order of the request."""

    results: tuple[AlteredQuotas, ...]


def _pair(entity_type: str, entity_name: str | None) -> tuple[str, str | None]:
    return entity_type, entity_name


def _quota(key: str, value: float) -> tuple[str, float]:
    return key, value


def _first(pair: tuple[Any, Any], *_: Any) -> Any:
    return pair[0]


def _second(pair: tuple[Any, Any], *_: Any) -> Any:
    return pair[1]


_ENTITY = Field(
    "entity",
    array(
        Field("entity_type", STRING, get=_first),
        Field("entity_name", STRING, nullable=0, get=_second),
        into=_pair,
    ),
)
DESCRIBE_REQUEST = Struct(
    Field(
        "components",
        array(
            Field("entity_type", STRING),
            Field("match_type", INT8),
            Field("match", STRING, nullable=0),
            into=QuotaFilter,
        ),
        attr="filters",
    ),
    Field("strict", BOOLEAN),
    into=DescribeClientQuotasRequest,
)
DESCRIBE_RESPONSE = Struct(
    THROTTLE_TIME,
    *FAILURE,
    Field(
        "entries",
        array(
            _ENTITY,
            Field("values", array(Field("key", STRING, get=_first), Field("value", FLOAT64, get=_second), into=_quota)),
            into=EntityQuotas,
        ),
        nullable=0,
    ),
)
failed_describe = refused(DescribeClientQuotasResponse)
ALTER_REQUEST = Struct(
    Field(
        "entries",
        array(
            _ENTITY,
            Field(
                "ops",
                array(Field("key", STRING), Field("value", FLOAT64), Field("remove", BOOLEAN), into=QuotaChange),
                attr="changes",
            ),
            into=QuotaAlteration,
        ),
        attr="alterations",
    ),
    Field("validate_only", BOOLEAN),
    into=AlterClientQuotasRequest,
)
ALTER_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("entries", array(*FAILURE, _ENTITY, into=AlteredQuotas), attr="results"),
)
failed_alter = refused_each(AlterClientQuotasResponse, "results", AlteredQuotas, "entity", of="alterations")
