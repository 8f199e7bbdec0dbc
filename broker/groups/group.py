"""The kinds of groups. They share their names, committed offsets and the log partition of their records.

All kinds have: `group_id`, `type`, `protocol_type`, `owner` and `counted` (`Holdings`), `held`, `state`,
`is_empty`, `is_dead`, `has_pending_members`, `is_subscribed`, `may_lose_offsets`, `offsets_expire_since_ms`,
`take_effects`, `wake_at_s`, `expire`, `forget_waiter`, `close`, `tombstones`, `replaced`. Those with committed offsets
also have `check_commit` and `check_transactional_commit`.
"""

from typing import TypeAlias

from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.groups.streams.state import StreamsGroup

Group: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup
