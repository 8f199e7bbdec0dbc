"""The comparison with Kafka (interop/compare): what counts as a difference, and what is known."""

import socket
import threading

import pytest

from interop.compare.difference import ENDED_EARLY, MISSING, Difference, Expected, differences, unexpected
from interop.compare.normal import Normaliser
from interop.compare.session import CLOSED, UNANSWERED, Barrier, Session, Step
from interop.compare.wire import BY_NAME
from warmlog.protocol.records.builder import build_batch

FIRST_FETCH, MIDDLE_FETCH, LAST_FETCH = 4, 11, 18
NEWEST = {api.key: api.last for api in BY_NAME.values()}  # both brokers serve them
FIRST_ID, SECOND_ID = bytes(range(16)), bytes(range(16, 32))


def steps(*answers: object) -> list[Step]:
    return [Step(f"step {place}", "Metadata", 9, {}, answer) for place, answer in enumerate(answers)]


def found(kafka: object, warmlog: object) -> list[tuple[str, object, object]]:
    return [(one.path, one.kafka, one.warmlog) for one in differences("area", "lowest", steps(kafka), steps(warmlog))]


def test_equal_answers_have_no_difference() -> None:
    assert found({"topics": [{"name": "a", "error_code": 0}]}, {"topics": [{"name": "a", "error_code": 0}]}) == []


def test_a_difference_names_the_path_and_both_values() -> None:
    one = {"topics": [{"name": "a", "error_code": 0}, {"name": "b", "error_code": 3}]}
    other = {"topics": [{"name": "a", "error_code": 0}, {"name": "b", "error_code": 5}]}
    assert found(one, other) == [("topics.error_code", 3, 5)]


def test_an_element_that_one_lacks_is_a_difference() -> None:
    one = {"topics": [{"name": "a", "error_code": 0}]}
    assert found(one, {"topics": []}) == [("topics", one["topics"][0], MISSING)]
    assert found({"topics": []}, one) == [("topics", MISSING, one["topics"][0])]


def test_a_name_that_is_answered_twice_is_not_one_that_is_answered_once() -> None:
    once = {"topics": [{"name": "a", "error_code": 0}]}
    assert found(once, {"topics": once["topics"] * 2}) == [("topics", MISSING, once["topics"][0])]


def test_a_closed_connection_is_a_difference() -> None:
    assert found({"error_code": 0}, CLOSED) == [("", {"error_code": 0}, CLOSED)]


def test_a_scenario_goes_on_after_a_request_that_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interop.compare.session.ANSWER_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        session = Session(f"127.0.0.1:{silent.getsockname()[1]}", "area", "lowest", 0, Barrier(), newest=NEWEST)
        assert session.ask("first", "Metadata", topics=[]) == {}
        silent.accept()[0].close()

        def close_next() -> None:
            connection, _ = silent.accept()
            connection.close()

        accepted = threading.Thread(target=close_next)
        accepted.start()
        assert session.ask("second", "Metadata", topics=[]) == {}
        accepted.join()
        session.close()
    assert [step.answer for step in session.steps] == [UNANSWERED, CLOSED]


@pytest.mark.parametrize(
    ("level", "version"), [("lowest", FIRST_FETCH), ("middle", MIDDLE_FETCH), ("highest", LAST_FETCH)]
)
def test_a_level_says_which_version_of_an_api_is_sent(level: str, version: int) -> None:
    assert Session("127.0.0.1:1", "area", level, 0, Barrier(), newest=NEWEST).version("Fetch") == version


def test_a_sequence_chooses_other_versions_than_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("127.0.0.1:1", "area", "highest", 0, Barrier(), newest=NEWEST)
    monkeypatch.setattr(session, "newness", 0.0)
    assert session.version("Fetch") == FIRST_FETCH


def test_a_run_that_ends_early_is_a_difference() -> None:
    (one,) = differences("area", "lowest", steps({}, {}), steps({}))
    assert (one.path, one.kafka, one.warmlog) == ("steps", 2, 1)


def test_a_scenario_that_neither_broker_lets_go_on_is_a_difference() -> None:
    early = [Step(ENDED_EARLY, "note", 0, {}, "TimeoutError")]
    assert [one.path for one in differences("area", "lowest", early, early)] == ["step"]


def test_expected_differences_are_left_out_and_counted() -> None:
    known = Expected("area/step *", "Metadata.error_code", "because", kafka=1)
    stale = Expected("other/*", "*", "because")
    left = unexpected(
        [_difference("error_code", 1, 2), _difference("error_code", 3, 2), _difference("x", 1, 2)], [known, stale]
    )
    assert [(one.path, one.kafka) for one in left] == [("error_code", 3), ("x", 1)]
    assert (known.matches, stale.matches) == (1, 0)


def _difference(path: str, kafka: object, warmlog: object) -> Difference:
    return Difference("area", "lowest", steps({})[0], path, path, kafka, warmlog)


def test_ids_become_symbols_that_tell_equal_ones_from_others() -> None:
    normal = Normaliser(base_time=0)
    first = normal.answer({"producers": [{"producer_id": 7}, {"producer_id": 9}]})
    assert [one["producer_id"] for one in first["producers"]] == ["<producer 1>", "<producer 2>"]
    assert normal.answer({"producer_id": 9}) == {"producer_id": "<producer 2>"}
    assert normal.answer({"producer_id": -1}) == {"producer_id": -1}


def test_the_id_of_a_topic_is_named_by_the_topic() -> None:
    normal = Normaliser(base_time=0)
    normal.name_topic(FIRST_ID, "a")
    assert normal.answer({"topic_id": FIRST_ID}) == {"topic_id": "<topic a>"}
    assert normal.answer({"name": "a", "topic_id": SECOND_ID})["topic_id"] == "<topic a #2>"
    assert normal.answer({"topic_id": bytes(16)}) == {"topic_id": bytes(16)}


def test_ids_that_a_scenario_made_up_are_compared_as_they_are() -> None:
    answer = {"topic_id": b"\5" * 16, "member_id": "given-nobody", "producer_id": 777_777}
    assert Normaliser(base_time=0).answer(answer) == answer


def test_elements_with_ids_alone_are_in_the_order_of_what_is_known() -> None:
    one, other = Normaliser(base_time=0), Normaliser(base_time=0)
    for normal in (one, other):
        normal.name_topic(FIRST_ID, "a")
        normal.answer({"member_id": "first"})
    topics = [{"topic_id": FIRST_ID, "error_code": 0}, {"topic_id": b"\1" * 16, "error_code": 100}]
    members = [{"member_id": "first", "metadata": b""}, {"member_id": "second", "metadata": b""}]
    theirs = one.answer({"responses": topics, "members": members})
    assert theirs == other.answer({"responses": topics[::-1], "members": members[::-1]})
    assert [member["member_id"] for member in theirs["members"]] == ["<member 1>", "<member 2>"]


def test_order_times_addresses_and_texts_are_not_compared() -> None:
    one, other = Normaliser(base_time=1_000_000), Normaliser(base_time=5_000_000)
    topics = [{"name": "b"}, {"name": "a"}]
    theirs = {"host": "x", "throttle_time_ms": 1, "timestamp": 1_000_005, "error_message": "x", "topics": topics}
    ours = {"host": "y", "throttle_time_ms": 2, "timestamp": 5_000_005, "error_message": "y", "topics": topics[::-1]}
    assert one.answer(theirs) == other.answer(ours)


def test_records_are_compared_by_their_headers() -> None:
    batch = build_batch([(1, b"k", b"v", ())], base_offset=7)
    (shown, cut) = Normaliser(base_time=0).answer({"records": batch + batch[:20]})["records"]
    assert shown.startswith("7..7 epoch -1 attributes 0 producer -1/-1/-1 crc ")
    assert cut == "cut 20"
