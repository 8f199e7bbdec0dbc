"""Rates of new connections. Source: kafka.network.ConnectionQuotasTest."""

from warmlog.broker.security.quotas.connection_rates import MAX_ADDRESSES, UNLIMITED, ConnectionRates
from warmlog.broker.security.quotas.entities import DEFAULT, QuotaEntity, QuotaIndex
from warmlog.broker.security.quotas.rates import Windows


class Measured:
    """Rates at a clock that the test sets."""

    def __init__(self, *, broker: int = UNLIMITED, address: float = 0.0) -> None:
        self.now_s = 1_000.0
        self.index = QuotaIndex()
        if address:
            self.index.set(QuotaEntity(ip=DEFAULT), {"connection_creation_rate": address})
        self.rates = ConnectionRates(self.index, Windows(), lambda: self.now_s, lambda: broker)

    def pause_s(self, listener: str = "kafka", rate: int = UNLIMITED, *, is_protected: bool = False) -> float:
        return self.rates.listener_pause_s(listener, lambda: rate, counts_at_broker=not is_protected)


def test_connections_wait_for_their_listener_and_no_longer_than_a_window() -> None:
    measured = Measured()
    assert [measured.pause_s(rate=2) for _ in range(20)] == [0.0] * 20
    assert measured.pause_s(rate=2) == 0.5
    assert measured.pause_s(rate=2) == 1.0
    assert measured.pause_s(rate=2) == 1.0
    assert measured.pause_s("other", rate=2) == 0.0
    measured.now_s += 11.0
    assert measured.pause_s(rate=2) == 0.0


def test_listeners_share_the_rate_of_the_broker_except_for_that_of_the_brokers() -> None:
    measured = Measured(broker=1)
    assert [measured.pause_s(name) for name in ["one", "other"] * 5] == [0.0] * 10
    assert measured.pause_s("one") > 0
    assert measured.pause_s("brokers", is_protected=True) == 0.0


def test_an_address_above_its_rate_is_not_counted_and_delays_no_other() -> None:
    measured = Measured(address=1.0)
    assert [measured.rates.address_pause_s("10.0.0.1") for _ in range(10)] == [0.0] * 10
    assert [measured.rates.address_pause_s("::ffff:10.0.0.1") for _ in range(5)] == [1.0] * 5
    assert measured.rates.address_pause_s("10.0.0.2") == 0.0
    measured.index.set(QuotaEntity(ip="10.0.0.1"), {"connection_creation_rate": 100.0})
    assert measured.rates.address_pause_s("10.0.0.1") == 0.0
    measured.index.set(QuotaEntity(ip="10.0.0.1"), {})
    measured.index.set(QuotaEntity(ip=DEFAULT), {})
    assert measured.rates.address_pause_s("10.0.0.1") == 0.0


def test_the_number_of_addresses_is_bounded() -> None:
    measured = Measured(address=1.0)
    for number in range(MAX_ADDRESSES + 100):
        measured.rates.address_pause_s(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(measured.rates) == MAX_ADDRESSES
