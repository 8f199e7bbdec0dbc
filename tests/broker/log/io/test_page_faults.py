"""Faults are counted where they are taken: real ones, by files put out of memory and mapped."""

import threading
from mmap import MADV_RANDOM, PAGESIZE, PROT_READ, mmap
from pathlib import Path

from tests.broker.log.io.eviction import evict, file_of, needs_eviction
from warmlog.broker.log.io.page_faults import SECTIONS, PageFaults


def cold_mapping(path: Path, pages: int) -> mmap:
    needs_eviction(path.parent)
    file = file_of(path, pages)
    evict(file)
    mapping = mmap(file.fd, pages * PAGESIZE, prot=PROT_READ)
    mapping.madvise(MADV_RANDOM)
    return mapping


def test_each_end_counts_what_came_since_the_one_before(tmp_path: Path) -> None:
    mapping, faults = cold_mapping(tmp_path / "f", 8), PageFaults()
    faults.begin()
    assert mapping[0] >= 0
    assert mapping[3 * PAGESIZE] >= 0
    faults.end("index_cold")
    assert mapping[5 * PAGESIZE] >= 0
    faults.end("log_scan")
    faults.end("append")
    assert faults.major == {"index_warm": 0, "index_cold": 2, "log_scan": 1, "append": 0}


def test_what_is_in_memory_takes_minor_faults_only(tmp_path: Path) -> None:
    file, faults = file_of(tmp_path / "f", 1), PageFaults()
    mapping = mmap(file.fd, PAGESIZE, prot=PROT_READ)
    faults.begin()
    assert mapping[0] >= 0
    faults.end("index_warm")
    assert faults.minor["index_warm"] >= 1
    assert faults.major["index_warm"] == 0


def test_nothing_is_counted_after_the_end_nor_for_another_thread(tmp_path: Path) -> None:
    mapping, faults = cold_mapping(tmp_path / "f", 8), PageFaults()
    faults.begin()
    other = threading.Thread(target=lambda: (mapping[0], faults.end("index_cold")))
    other.start()
    other.join()
    assert faults.major["index_cold"] == 0
    faults.leave()
    assert mapping[4 * PAGESIZE] >= 0
    faults.end("index_cold")
    assert not sum(faults.major.values())


def test_the_rest_is_the_threads_other_faults(tmp_path: Path) -> None:
    mapping, faults = cold_mapping(tmp_path / "f", 8), PageFaults()
    before = dict(faults.rows())
    assert mapping[0] >= 0
    after = dict(faults.rows())
    assert after["major", "other"] - before["major", "other"] == 1
    assert {where for _, where in after} == {*SECTIONS, "other"}
