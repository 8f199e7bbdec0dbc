"""The settings of a group: its own, else the broker's current ones."""

from collections.abc import Mapping

from warmlog.broker.groups.consumer.limits import ConsumerLimits
from warmlog.broker.groups.share.limits import ShareLimits
from warmlog.broker.groups.streams.limits import StreamsLimits
from warmlog.broker.settings.groups.own_limits import effective
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import parts


class GroupLimits:
    """Looks up limits. Those of groups without settings of their own are computed once."""

    def __init__(self, live: LiveSettings) -> None:
        self._live = live
        self._settings = live.current
        self._consumer = _consumer_limits(live.current, {})
        self._share = _share_limits(live.current, {})
        self._streams = _streams_limits(live.current, {})

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors that consumer groups may use; the first is the default."""
        return self._consumer.assignors

    def consumer(self, name: str) -> ConsumerLimits:
        """Return the limits of a consumer group."""
        own = self._own(name)
        return _consumer_limits(self._live.current, own) if own else self._consumer

    def share(self, name: str) -> ShareLimits:
        """Return the limits of a share group."""
        own = self._own(name)
        return _share_limits(self._live.current, own) if own else self._share

    def streams(self, name: str) -> StreamsLimits:
        """Return the limits of a streams group."""
        own = self._own(name)
        return _streams_limits(self._live.current, own) if own else self._streams

    def _own(self, name: str) -> Mapping[str, str]:
        """Return a group's own settings; recompute the broker's limits if its settings have changed."""
        current = self._live.current
        if current is not self._settings:
            self._settings = current
            self._consumer, self._share = _consumer_limits(current, {}), _share_limits(current, {})
            self._streams = _streams_limits(current, {})
        return self._live.overrides.resources.get(f"group:{name}", {})


def _consumer_limits(settings: Settings, own: Mapping[str, str]) -> ConsumerLimits:
    return ConsumerLimits(
        session_timeout_ms=effective(settings, "consumer.session.timeout.ms", own),
        heartbeat_interval_ms=effective(settings, "consumer.heartbeat.interval.ms", own),
        assignment_interval_ms=effective(settings, "consumer.assignment.interval.ms", own),
        max_size=settings.group_consumer_max_size,
        assignors=tuple(parts(settings.group_consumer_assignors)),
        regex_refresh_interval_ms=settings.group_consumer_regex_refresh_interval_ms,
        may_downgrade=settings.group_consumer_migration_policy in {"bidirectional", "downgrade"},
        classic_max_size=settings.group_max_size,
    )


def _share_limits(settings: Settings, own: Mapping[str, str]) -> ShareLimits:
    return ShareLimits(
        session_timeout_ms=effective(settings, "share.session.timeout.ms", own),
        heartbeat_interval_ms=effective(settings, "share.heartbeat.interval.ms", own),
        assignment_interval_ms=effective(settings, "share.assignment.interval.ms", own),
        # as in Kafka: there is no second attempt while the outcome of the first may still arrive
        initialize_retry_interval_ms=max(
            settings.group_share_initialize_retry_interval_ms, settings.offsets_commit_timeout_ms
        ),
        max_size=settings.group_share_max_size,
    )


def _streams_limits(settings: Settings, own: Mapping[str, str]) -> StreamsLimits:
    replicas = int(own.get("streams.num.standby.replicas", settings.group_streams_num_standby_replicas))
    return StreamsLimits(
        session_timeout_ms=effective(settings, "streams.session.timeout.ms", own),
        heartbeat_interval_ms=effective(settings, "streams.heartbeat.interval.ms", own),
        assignment_interval_ms=effective(settings, "streams.assignment.interval.ms", own),
        initial_rebalance_delay_ms=int(
            own.get("streams.initial.rebalance.delay.ms", settings.group_streams_initial_rebalance_delay_ms)
        ),
        max_size=settings.group_streams_max_size,
        standby_replicas=min(replicas, settings.group_streams_max_standby_replicas),
        rack_tags=tuple(
            parts(own.get("streams.rack.aware.assignment.tags", settings.group_streams_rack_aware_assignment_tags))
        ),
    )
