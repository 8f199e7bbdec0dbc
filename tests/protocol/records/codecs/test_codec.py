"""The choice between the compiled and the pure record codec."""

import os
import subprocess
import sys
from types import ModuleType

REPORT = "from warmlog.protocol.records import codec; print(codec.compiled, codec.walk_records.__module__)"
HIDE = "import sys; sys.modules['warmlog.protocol.records._codec'] = None"
MISSING = "from warmlog.protocol.records import codec; print(type(codec.missing).__name__)"


def run(program: str, **environment: str) -> tuple[list[str], str]:
    """Run a program in a new interpreter; return what it prints and logs."""
    clean = {name: value for name, value in os.environ.items() if name != "WARMLOG_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split(), done.stderr


def test_the_compiled_codec_is_used_if_it_is_built(compiled: ModuleType) -> None:
    assert run(REPORT) == (["True", compiled.__name__], "")
    assert run(REPORT, WARMLOG_PURE="0") == (["True", compiled.__name__], "")


def test_the_pure_codec_is_used_on_request() -> None:
    assert run(REPORT, WARMLOG_PURE="1") == (["False", "warmlog.protocol.records.record"], "")
    assert run(MISSING, WARMLOG_PURE="1") == (["NoneType"], "")


def test_the_pure_codec_is_the_fallback_and_only_a_broker_says_so() -> None:
    assert run(f"{HIDE}; {REPORT}") == (["False", "warmlog.protocol.records.record"], "")
    assert run(f"{HIDE}; {MISSING}") == (["ModuleNotFoundError"], "")
    serve = f"{HIDE}; from warmlog.cli import main; main(['serve', '--data-dir', '/proc/none', '--kafka', 'none'])"
    done = subprocess.run([sys.executable, "-c", serve], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("no compiled record codec; using the slower one in pure Python: ") == 1


def test_compiled_and_pure_codec_have_the_same_names(compiled: ModuleType) -> None:
    from warmlog.protocol.records import codec, received, record

    for name in set(codec.__all__) - {"compiled", "missing", "accept_batch", "accept_stamped"}:  # only compiled
        assert hasattr(record, name) or hasattr(received, name)
        assert hasattr(compiled, name)
    assert compiled.Record is record.Record


def test_loading_the_codec_loads_no_compression_library() -> None:
    program = (
        "import sys, warmlog.protocol.records.reader, warmlog.protocol.records.builder; "
        "print([name for name in ('lz4', 'cramjam') if name in sys.modules])"
    )
    assert run(program)[0] == ["[]"]
