"""Numbers that a group may have of its own: `KIND.NAME` in place of the broker's `group.KIND.NAME`.

The broker bounds them by `group.KIND.min.NAME` and `group.KIND.max.NAME`.

Source: org.apache.kafka.coordinator.group.GroupConfig (validate, evaluate).
"""

from collections.abc import Mapping

from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import SettingError


def effective(settings: Settings, name: str, texts: Mapping[str, str]) -> int:
    """Return the number for a group: its own within the broker's bounds, else the broker's.

    `name`: the group's setting, such as `consumer.session.timeout.ms`. `texts`: the group's own settings.
    """
    text = texts.get(name)
    if text is None:
        return of_broker(settings, name)
    return min(max(int(text), of_broker(settings, name, "min")), of_broker(settings, name, "max"))


def check_bounds(given: str, value: int, settings: Settings, name: str) -> None:
    """Raise SettingError if the value of the setting `given` is outside the bounds of a group's setting `name`."""
    least, most = (of_broker(settings, name, bound) for bound in ("min", "max"))
    if not least <= value <= most:
        low, high = (f"group.{_bounded(name, bound)}" for bound in ("min", "max"))
        raise SettingError(f"{given}: expected {least} to {most} ({low} and {high}), not {value}")


def of_broker(settings: Settings, name: str, bound: str = "") -> int:
    """Return the broker's number for a group's setting, or its `bound`, min or max."""
    field = f"group.{_bounded(name, bound) if bound else name}".replace(".", "_")
    value: int = getattr(settings, field)
    return value


def _bounded(name: str, bound: str) -> str:
    kind, _, rest = name.partition(".")
    return f"{kind}.{bound}.{rest}"
