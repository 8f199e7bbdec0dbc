"""Check that the check of texts finds what it is for."""

from tests.check_text import MAX_SUBJECT, bad_subjects, bad_words, new_subjects


def test_a_long_subject_and_one_with_a_full_stop_are_found() -> None:
    long = "x" * (MAX_SUBJECT + 1)
    assert list(bad_subjects(["Recover logs in parallel"])) == []
    assert list(bad_subjects([long, "Done."])) == [
        f"commit {long!r}: 61 characters, at most 60",
        "commit 'Done.': no full stop at the end",
    ]


def test_words_in_a_sense_of_our_own_are_found_with_their_line() -> None:
    text = "The log is offline.\nThe log is out of service until it is made anew.\n"
    assert [number for number, _ in bad_words(text)] == [2, 2]


def test_commits_are_looked_up_without_a_failure() -> None:
    assert all(isinstance(subject, str) for subject in new_subjects())
