"""Receipts say of which partition offsets were lost before they were copied."""

import json
from dataclasses import replace

import pytest

from warmlog.pipeline.jobs.table_stretches import TableContents
from warmlog.pipeline.lakehouse.ledger import Rewrite, fold
from warmlog.pipeline.lakehouse.receipts import Receipt, Span, parse_receipt
from warmlog.pipeline.source.offsets import Position

A, B = ("orders", 0), ("orders", 1)


def receipt(name: str, first: int, end: int, **lost: object) -> Receipt:
    spans = {key: Span(first=first, end=Position(offset=end)) for key in (A, B)}
    return Receipt(id=name, spans=spans, **lost)  # type: ignore[arg-type]


def stated(*receipts: Receipt) -> set[object]:
    return set(TableContents(files=(), receipts=receipts, positions={}, columns=()).losses())


LATER = receipt("2", 20, 30, lost=20, lost_before={A: 10})  # 10 within a span
STATED_OF_A = {("2", A)}


def test_a_count_is_of_its_partition_alone() -> None:
    assert stated(receipt("1", 0, 10), LATER) == STATED_OF_A
    assert stated(receipt("1", 0, 10), replace(LATER, lost_before={A: 9})) == set()


def test_receipts_of_earlier_versions_have_one_count_for_all() -> None:
    assert stated(receipt("1", 0, 10), replace(LATER, lost_before=None)) == {("2", A), ("2", B)}
    assert stated(receipt("1", 0, 10), replace(LATER, lost=19, lost_before=None)) == set()


@pytest.mark.parametrize("lost_before", [{A: 10}, {}, None])
def test_counts_are_stored(lost_before: dict[tuple[str, int], int] | None) -> None:
    written = replace(LATER, lost_before=lost_before)
    assert parse_receipt(written.text(), "here") == written
    assert ("lostBefore" in json.loads(written.text())) == (lost_before is not None)


def test_a_receipt_without_losses_has_no_counts() -> None:
    assert "lostBefore" not in json.loads(receipt("1", 0, 10, lost_before={}).text())
    assert parse_receipt(receipt("1", 0, 10).text(), "here").lost_before == {}


def test_a_ledger_keeps_them() -> None:
    (ledger,) = fold([receipt("1", 0, 20, lost=5, lost_before={B: 5}), replace(LATER, lost_before={})], Rewrite(), [])
    assert (ledger.lost, ledger.lost_before) == (25, {B: 5})
    (ledger,) = fold([receipt("1", 0, 20, lost=5), LATER], Rewrite(), [])
    assert (ledger.lost, ledger.lost_before) == (25, None)
