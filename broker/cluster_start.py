"""Prepare a start as a member of a cluster: connect to the store, log in, check the security of the other brokers."""

import logging
from random import Random

from warmlog.broker.cluster.etcd.account import Account, EtcdPasswordFileError
from warmlog.broker.cluster.etcd.endpoints import parse_endpoints
from warmlog.broker.cluster.etcd.etcd_store import EtcdStore
from warmlog.broker.cluster.etcd.tls import PREFIX
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.local.socket_store import SCHEME, SocketStore
from warmlog.broker.cluster.store import KnownStore
from warmlog.broker.metadata.errors import CannotJoinError
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.replication.peers.login import PeerLogin, PeerPasswordFileError
from warmlog.broker.security.client_tls import ClientTls, TlsFileError, TlsFiles
from warmlog.broker.settings.listeners import inter_broker_listener
from warmlog.broker.settings.sasl import sasl_settings
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.scram import MECHANISMS, PLAIN

logger = logging.getLogger(__name__)


class ClusterStartError(CannotJoinError):
    """The broker cannot be part of the cluster as configured. `str()` is one line for users."""


def check_rights(settings: Settings, image: ClusterImage, broker: int) -> None:
    """Refuse to start without an authorizer if other brokers have one. Raises ClusterStartError."""
    others = [each for each in image.known.values() if each.broker != broker]
    if settings.authorizer_class_name:
        named = ", ".join(str(each.broker) for each in others if not each.checks_rights)
        if named:
            logger.warning(
                "brokers without an authorizer: %s; whoever reaches one of them can change the cluster's topics: "
                "restart them with the settings of this broker",
                named,
            )
        return
    named = ", ".join(str(each.broker) for each in others if each.checks_rights)
    if named and not settings.warmlog_cluster_mixed_security:
        raise ClusterStartError(
            f"brokers of this cluster check rights, and this one would not: {named}; whoever reaches this broker "
            "could change the cluster's topics. Start it as the others, such as with --secure (while security is "
            "being removed: warmlog.cluster.mixed.security=true)"
        )


def connect_store(
    settings: Settings, metrics: Metrics, known: KnownStore | None, random: Random
) -> EtcdStore | SocketStore:
    """Return the configured store. Raises ClusterStartError."""
    given = settings.warmlog_cluster_etcd
    if given.startswith(SCHEME):
        return SocketStore(given.removeprefix(SCHEME), metrics=metrics, known=known)
    try:
        endpoints = parse_endpoints(given)
    except ValueError as error:
        raise ClusterStartError(f"warmlog.cluster.etcd: {error}") from None
    is_tls = endpoints[0].is_tls
    return EtcdStore(
        endpoints,
        settings.warmlog_cluster_id,
        metrics=metrics,
        tls=_tls(settings) if is_tls else None,
        account=_account(settings, is_encrypted=is_tls) if settings.warmlog_cluster_etcd_user else None,
        known=known,
        random=random,
    )


def _tls(settings: Settings) -> ClientTls:
    """Load certificates and keys for TLS to etcd. Raises ClusterStartError."""
    files = TlsFiles(
        prefix=PREFIX,
        ca=settings.warmlog_cluster_etcd_ca_file,
        certificate=settings.warmlog_cluster_etcd_certificate_file,
        key=settings.warmlog_cluster_etcd_key_file,
    )
    try:
        return ClientTls(files)
    except TlsFileError as error:
        raise ClusterStartError(str(error)) from None


def _account(settings: Settings, *, is_encrypted: bool) -> Account:
    """Return the user of etcd. Raises ClusterStartError."""
    if not is_encrypted:
        logger.warning("the password of etcd's user crosses the network unencrypted: use https:// endpoints")
    try:
        return Account(settings.warmlog_cluster_etcd_user, settings.warmlog_cluster_etcd_password_file)
    except EtcdPasswordFileError as error:
        raise ClusterStartError(str(error)) from None


def peer_login(settings: Settings) -> PeerLogin | None:
    """Return this broker's login at other brokers; None without SASL. Raises ClusterStartError."""
    if sasl_settings(settings, inter_broker_listener(settings)) is None:
        return None
    login = PeerLogin(
        settings.warmlog_inter_broker_user,
        settings.warmlog_inter_broker_password_file,
        settings.sasl_mechanism_inter_broker_protocol,
        setting="warmlog.inter.broker.password.file",
    )
    _read_password(login)
    return login


def check_login(login: PeerLogin, image: ClusterImage) -> None:
    """Refuse a password that the other brokers would refuse. Blocking: intentionally slow. Raises ClusterStartError.

    A user that does not exist yet is accepted; tokens are not checked.
    """
    names = list(MECHANISMS) if login.mechanism == PLAIN else [login.mechanism]
    known = [(name, image.credentials[login.user, name]) for name in names if (login.user, name) in image.credentials]
    if not known:
        return
    name, credential = known[0]  # PLAIN is checked with it
    if not credential.fits(MECHANISMS[name], _read_password(login)):
        raise ClusterStartError(
            f"{login.setting}: {login.password_file} does not have the password that user {login.user} has in this"
            " cluster: copy the file from another broker; if the password was changed, write the new one to the file"
        )


def _read_password(login: PeerLogin) -> str:
    """Raise ClusterStartError if the file cannot be read."""
    try:
        return login.password()
    except PeerPasswordFileError as error:
        raise ClusterStartError(str(error)) from None
