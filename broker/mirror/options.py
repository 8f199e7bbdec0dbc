"""The settings of mirroring, converted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from warmlog.broker.replication.peers.login import PeerLogin
from warmlog.broker.security.client_tls import ClientTls, TlsFiles
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.mirrors import chosen_by, source_addresses
from warmlog.protocol.oauthbearer import OAUTHBEARER


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """The source to mirror, and the topics to mirror from it.

    `bootstrap`: (host, port) of brokers of the source. `topics` and `groups` choose by name; `groups` is None if no
    offsets are copied. `deletes`: whether topics are deleted here after they were deleted at the source.
    `interval_s`: how often topics and offsets are compared. `bytes_per_s` returns the limit of the copying rate, 0 for
    none. `tls`: if connections are encrypted; `login`: the user, with SASL.
    """

    bootstrap: Sequence[tuple[str, int]]
    topics: Callable[[str], bool]
    groups: Callable[[str], bool] | None = None
    deletes: bool = False
    interval_s: float = 5.0
    bytes_per_s: Callable[[], int] = lambda: 0
    tls: ClientTls | None = None
    login: PeerLogin | None = None


def mirror_options(live: LiveSettings) -> MirrorOptions:
    """Return the options from the settings. Raises SettingError, TlsFileError, PeerPasswordFileError."""
    settings = live.current
    protocol = settings.warmlog_mirror_security_protocol
    tls = login = None
    if protocol.endswith("SSL"):
        tls = ClientTls(
            TlsFiles(
                prefix="warmlog.mirror",
                ca=settings.warmlog_mirror_ca_file,
                certificate=settings.warmlog_mirror_certificate_file,
                key=settings.warmlog_mirror_key_file,
            )
        )
    if protocol.startswith("SASL"):
        has_token = settings.warmlog_mirror_sasl_mechanism == OAUTHBEARER
        login = PeerLogin(
            settings.warmlog_mirror_user,
            settings.warmlog_mirror_token_file if has_token else settings.warmlog_mirror_password_file,
            settings.warmlog_mirror_sasl_mechanism,
            setting="warmlog.mirror.token.file" if has_token else "warmlog.mirror.password.file",
        )
        login.password()
    topics, groups = settings.warmlog_mirror_topics, settings.warmlog_mirror_groups
    return MirrorOptions(
        bootstrap=source_addresses(settings.warmlog_mirror_from),
        topics=chosen_by("warmlog.mirror.topics", topics),
        groups=chosen_by("warmlog.mirror.groups", groups) if groups else None,
        deletes=settings.warmlog_mirror_delete_topics,
        interval_s=settings.warmlog_mirror_interval_ms / 1000,
        bytes_per_s=lambda: live.current.warmlog_mirror_max_bytes_per_second,
        tls=tls,
        login=login,
    )
