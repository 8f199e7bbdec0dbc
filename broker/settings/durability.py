"""Describe what a power failure can lose."""

from warmlog.broker.settings.settings import Settings
from warmlog.protocol.records.record import MAX_INT64


def durability_sentence(settings: Settings) -> str:
    """Return a sentence for startup that says what a power failure can lose with these settings."""
    if settings.log_flush_interval_messages == 1:
        return "power cut: loses nothing acknowledged (every append is synced before its reply)"
    bounds = []
    if settings.log_flush_interval_messages < MAX_INT64:
        bounds.append(f"{settings.log_flush_interval_messages} records a partition")
    if settings.flush_ms < MAX_INT64:
        bounds.append(f"{(settings.flush_ms + settings.flush_check_ms) / 1000:g} s of appends")
    if bounds:
        least = ", whichever is less" if len(bounds) > 1 else ""
        return f"power cut: can lose {' or '.join(bounds)}{least}; a crash of the process loses nothing"
    return (
        "power cut: can lose what the kernel has not written yet (usually the last 30 s);"
        " a crash of the process loses nothing"
        " (log.flush.interval.messages=1 syncs every append)"
    )
