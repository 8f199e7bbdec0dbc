"""How long clients have to pause, and that strangers cannot fill memory."""

from dataclasses import dataclass

from warmlog.broker.security.principal import ANONYMOUS, Principal
from warmlog.broker.security.quotas.client_quotas import IDLE_MS, MAX_OF_USER, MAX_SERIES, MAX_SHARES, ClientQuotas
from warmlog.broker.security.quotas.entities import DEFAULT, QuotaEntity, QuotaIndex
from warmlog.broker.security.quotas.rates import Windows

RATES = {"producer_byte_rate": 1_000.0, "consumer_byte_rate": 1_000.0}


@dataclass
class Sender:
    """A client."""

    client_id: str = "app"
    principal: Principal = ANONYMOUS
    worked_s: float = 0.0
    throttle_ms: int = 0


class Measured:
    """Quotas at a clock that the test sets."""

    def __init__(self, **quotas: float) -> None:
        self.now_s = 1_000.0
        self.index = QuotaIndex()
        if quotas:
            self.index.set(QuotaEntity(None, DEFAULT), quotas)
        self.quotas = ClientQuotas(self.index, Windows(), lambda: self.now_s)


def test_without_quotas_nothing_is_measured() -> None:
    measured = Measured()
    assert not measured.quotas.is_on
    assert measured.quotas.produced(Sender(), 1 << 30, is_timed=True) == 0
    assert measured.quotas.max_fetch_bytes(Sender()) is None
    assert len(measured.quotas) == 0


def test_a_producer_may_send_ten_windows_at_once_and_then_pauses() -> None:
    measured = Measured(**RATES)
    assert measured.quotas.produced(Sender(), 10_000, is_timed=True) == 0
    assert measured.quotas.produced(Sender(), 500, is_timed=True) == 500
    assert measured.quotas.produced(Sender("other"), 10_000, is_timed=True) == 0, "each client has its own"
    measured.now_s += 0.5
    assert measured.quotas.produced(Sender(), 0, is_timed=True) == 0


def test_a_changed_quota_applies_to_what_was_measured_before() -> None:
    measured = Measured(**RATES)
    measured.quotas.produced(Sender(), 10_000, is_timed=True)
    measured.index.set(QuotaEntity(None, "app"), {"producer_byte_rate": 500.0})
    assert measured.quotas.produced(Sender(), 0, is_timed=True) == 10_000
    measured.index.set(QuotaEntity(None, "app"), {"producer_byte_rate": 5_000.0})
    assert measured.quotas.produced(Sender(), 0, is_timed=True) == 0


def test_a_throttled_fetch_is_empty_and_not_recorded() -> None:
    measured = Measured(**RATES)
    assert measured.quotas.fetched(Sender(), 6_000) == (0, False)
    assert measured.quotas.fetched(Sender(), 6_000) == (2_000, True)
    assert measured.quotas.fetched(Sender(), 6_000) == (2_000, True)
    assert measured.quotas.fetched(Sender(), 4_000) == (0, False)
    measured.now_s += 11.0
    assert measured.quotas.fetched(Sender(), 6_000) == (0, False)


def test_a_batch_above_the_quota_of_all_windows_is_sent_when_nothing_else_was() -> None:
    measured = Measured(**RATES)
    assert measured.quotas.max_fetch_bytes(Sender()) == 10_000
    assert measured.quotas.fetched(Sender(), 1) == (0, False)
    assert measured.quotas.fetched(Sender(), 25_000) == (15_001, True)
    measured.now_s += 15.001
    assert measured.quotas.fetched(Sender(), 25_000) == (15_000, False)
    assert measured.quotas.fetched(Sender(), 1) == (15_001, True)


def test_time_is_charged_once_and_pauses_are_no_longer_than_a_window() -> None:
    measured = Measured(request_percentage=10.0)
    client = Sender(worked_s=1.0)
    assert measured.quotas.requested(client) == 0
    assert client.worked_s == 0.0
    client.worked_s = 0.05
    assert measured.quotas.requested(client) == 500
    client.worked_s = 5.0
    assert measured.quotas.requested(client) == 1_000
    assert measured.quotas.fetched(client, 0) == (1_000, True)
    client.worked_s = 5.0
    assert measured.quotas.produced(client, 1, is_timed=False) == 0
    assert client.worked_s == 5.0


def test_partitions_are_saved_up_overdrawn_once_and_then_refused() -> None:
    measured = Measured(controller_mutation_rate=2.0)
    client = Sender()
    assert measured.quotas.mutate(client, 21, is_strict=True)
    assert measured.quotas.mutate(client, 11, is_strict=True), "one token was left"
    assert client.throttle_ms == 0
    assert not measured.quotas.mutate(client, 1, is_strict=True)
    assert not measured.quotas.mutate(client, 1, is_strict=True)
    assert client.throttle_ms == 5_000
    assert dict(measured.quotas.throttled())["controller_mutation_rate",] == 1
    measured.now_s += 5.0
    client.throttle_ms = 0
    assert measured.quotas.mutate(client, 4, is_strict=False)
    assert client.throttle_ms == 2_000, "who does not know the error pauses at once"
    assert measured.quotas.mutate(client, 4, is_strict=False)
    assert client.throttle_ms == 4_000
    assert dict(measured.quotas.throttled_s())["controller_mutation_rate",] == 9.0
    assert measured.quotas.mutate(Sender("other"), 1, is_strict=True)


def test_shares_are_bounded_and_forgotten_when_idle() -> None:
    measured = Measured(**RATES)
    quotas, steady = measured.quotas, Sender("steady")
    assert quotas.produced(steady, 10_000, is_timed=True) == 0
    for number in range(2 * MAX_SHARES):
        quotas.produced(Sender(f"stranger-{number}"), 1, is_timed=True)
        if number % 1_000 == 0:
            assert quotas.produced(steady, 1, is_timed=True) > 0, "who is in use is not forgotten"
    assert len(quotas) == MAX_SHARES
    measured.now_s += IDLE_MS / 1000
    quotas.produced(Sender("late"), 1, is_timed=True)
    assert len(quotas) == 1


def test_a_user_with_many_client_ids_forgets_none_of_others() -> None:
    measured = Measured(**RATES)
    bob, eve = Principal("bob"), Principal("eve")
    assert measured.quotas.produced(Sender("app", bob), 5_000, is_timed=True) == 0
    for number in range(MAX_SHARES + 1):
        measured.quotas.produced(Sender(f"id-{number}", eve), 1, is_timed=True)
    assert len(measured.quotas) == MAX_OF_USER + 1
    assert measured.quotas.produced(Sender("app", bob), 6_000, is_timed=True) == 1_000


def test_a_client_that_pauses_keeps_its_share() -> None:
    measured = Measured(**RATES)
    assert measured.quotas.produced(Sender("greedy"), 20_000, is_timed=True) == 10_000
    for number in range(2 * MAX_SHARES):
        measured.quotas.produced(Sender(f"other-{number}"), 1, is_timed=True)
    assert measured.quotas.produced(Sender("greedy"), 0, is_timed=True) == 10_000


def test_long_names_do_not_fill_memory_and_stay_apart() -> None:
    measured = Measured(**RATES)
    one, other = Sender("x" * 30_000 + "1"), Sender("x" * 30_000 + "2")
    assert measured.quotas.produced(one, 20_000, is_timed=True) == 10_000
    assert measured.quotas.produced(other, 10_000, is_timed=True) == 0
    ((_, user, client_id), seconds) = next(iter(measured.quotas.throttled_s_of_shares()))
    assert (user, seconds) == ("", 10.0)
    assert len(client_id) < 100


def test_metrics_have_the_clients_that_were_throttled_last() -> None:
    measured = Measured(**RATES)
    for number in range(MAX_SERIES + 50):
        assert measured.quotas.produced(Sender(f"{number}"), 11_000, is_timed=True) == 1_000
    assert measured.quotas.produced(Sender("60"), 0, is_timed=True) == 1_000
    series = dict(measured.quotas.throttled_s_of_shares())
    assert len(series) == MAX_SERIES
    assert series["producer_byte_rate", "", "60"] == 2.0
    assert ("producer_byte_rate", "", "49") not in series
    assert dict(measured.quotas.throttled())["producer_byte_rate",] == MAX_SERIES + 51
    assert dict(measured.quotas.throttled_s())["producer_byte_rate",] == MAX_SERIES + 51
    assert dict(measured.quotas.throttled())["consumer_byte_rate",] == 0
