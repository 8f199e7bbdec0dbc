"""The current rules of delivery to each share group."""

from warmlog.broker.settings.groups.deliveries import ShareRules, share_rules
from warmlog.broker.settings.live import LiveSettings


class GroupShareRules:
    """The current rules of all share groups."""

    def __init__(self, settings: LiveSettings) -> None:
        self._live = settings
        self._of: tuple[object, object] = (None, None)
        self._known: dict[str, ShareRules] = {}

    def __getitem__(self, group: str) -> ShareRules:
        """Return the rules of a group."""
        current = self._live.current, self._live.overrides
        if self._of[0] is not current[0] or self._of[1] is not current[1]:
            self._of = current
            self._known.clear()
        texts = self._live.overrides.resources.get(f"group:{group}", {})
        name = group if texts else ""
        rules = self._known.get(name)
        if rules is None:
            rules = self._known[name] = share_rules(self._live.current, texts)
        return rules
