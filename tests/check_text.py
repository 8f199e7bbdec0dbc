"""Check what a machine can see of the text in this repository; `make lint` runs it.

1. The subject of each commit since this file was added: at most 60 characters, no full stop at the end.
2. Lines of prose in the documentation: at most 120 characters.
3. Words that are not used in a sense of our own: in the documentation and in all sources.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.documents import ROOT, long_lines

MAX_SUBJECT = 60
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/*/*.md")
QUOTES_THEM = {"tests/check_text.py", "tests/test_check_text.py"}
SOURCES = tuple(
    f"{folder}/**/*.py{kind}"
    for folder in ("broker", "protocol", "warmlog", "tests", "interop", "benchmarks", "deploy")
    for kind in ("", "[xi]*")
)
#: Expression to what is written instead.
INSTEAD = {
    r"\b(?:made|make|makes|making|written) anew\b": "rebuilt, rewritten",
    r"\bheld against\b": "compared with, validated against",
    r"\blet go of\b": "released",
    r"\bout of service\b": "failed, offline",
    r"\bby heart\b": "cached",
    r"\bput right\b": "corrected, repaired",
    r"\bby and by\b": "gradually",
    r"\bnobody says\b": "not set",
    r"\bMust not know\b": "an import contract in pyproject.toml",
    r"\bOwns: ": "a plain sentence",
    r"\b(?:is|are|was|were) told of\b": "is reported, is notified of",
}


def bad_subjects(subjects: list[str]) -> Iterator[str]:
    """Yield a message for each subject of a commit that is too long or ends with a full stop."""
    for subject in subjects:
        if len(subject) > MAX_SUBJECT:
            yield f"commit {subject!r}: {len(subject)} characters, at most {MAX_SUBJECT}"
        if subject.endswith("."):
            yield f"commit {subject!r}: no full stop at the end"


def new_subjects() -> list[str]:
    """Return the subjects of the commits since this file was added; none outside a clone with its history."""
    this = str(Path(__file__).relative_to(ROOT))
    added = git("log", "--diff-filter=A", "--format=%H", "-1", "--", this).strip()
    return git("log", "--no-merges", "--format=%s", f"{added}..HEAD").splitlines() if added else []


def git(*arguments: str) -> str:
    """Run git and return its output; nothing if that fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""


def bad_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, message) for each expression of INSTEAD in a text."""
    for number, line in enumerate(text.splitlines(), start=1):
        for expression, instead in INSTEAD.items():
            found = re.search(expression, line)
            if found is not None:
                yield number, f"{found[0]!r}: write {instead}"


def problems() -> Iterator[str]:
    """Yield all that is wrong, a line each."""
    yield from bad_subjects(new_subjects())
    documents = [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]
    for path in documents:
        yield from (f"{path.relative_to(ROOT)}: more than 120 characters: {line[:60]}..." for line in long_lines(path))
    sources = [path for pattern in SOURCES for path in sorted(ROOT.glob(pattern)) if path.suffix != ".so"]
    sources = [path for path in sources if str(path.relative_to(ROOT)) not in QUOTES_THEM]
    for path in documents + sources:
        yield from (f"{path.relative_to(ROOT)}:{number}: {what}" for number, what in bad_words(path.read_text()))


def main() -> int:
    """Print the problems; return 1 if there are any."""
    found = list(problems())
    print("\n".join(found) or "text: nothing wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
