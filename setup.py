"""The compiled parts of the distribution, and its description; everything else about it is in pyproject.toml.

Two lists, and nothing else to keep up to date when modules come and go:

- `CYTHON`: extensions written in Cython. Without one its pure Python twin serves, or the event loop itself.
- `MYPYC`: ordinary typed modules that mypyc translates to C. There is one source, and it also runs uncompiled.

The build has three steps: translate both kinds to C (Cython runs in child processes beside mypyc), compile the C files
in parallel, link. Everything is kept below `build/`, so that a rebuild translates and compiles only what changed:

    python setup.py build_ext --inplace

Compiling is optional. If a Cython extension cannot be built, its twin serves; if any of the mypyc modules cannot be
built, none is installed, because compiled modules call each other directly. Either is reported in one line.
WARMLOG_PURE=1 builds only the Cython extensions; with WARMLOG_COMPILED=1 a part that cannot be built is an error.
"""

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stdout
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from textwrap import shorten

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

README = Path(__file__).with_name("README.md")
PARSER = "warmlog/protocol/records/_reading.pxi"
CYTHON = {
    "warmlog/broker/metrics/_requests.pyx": [],
    "warmlog/broker/log/io/_page_cache.pyx": [],
    "warmlog/broker/log/io/_write_thread.pyx": [],
    "warmlog/broker/log/_scan.pyx": [],
    "warmlog/broker/net/_send_thread.pyx": [],
    "warmlog/protocol/kafka/codec/_compiled.pyx": [],
    "warmlog/protocol/records/_codec.pyx": [PARSER],
    "warmlog/protocol/records/arrow/_columns.pyx": [PARSER],
    "warmlog/protocol/records/compaction/_filtering.pyx": [],
}
MYPYC = (
    "warmlog/protocol/frame.py",
    "warmlog/protocol/records/batch.py",
    "warmlog/protocol/records/validation.py",
    "warmlog/broker/log/active_writer.py",
    "warmlog/broker/log/append.py",
    "warmlog/broker/log/appender.py",
    "warmlog/broker/log/producers/table.py",
    "warmlog/broker/log/producers/transactions.py",
    "warmlog/broker/log/producers/transitions.py",
    "warmlog/broker/log/io/files.py",
    "warmlog/broker/log/io/shared_writes.py",
    "warmlog/broker/log/flush.py",
    "warmlog/broker/log/index/search.py",
    "warmlog/broker/log/segments/log_scan.py",
    "warmlog/broker/log/index/mapped.py",
    "warmlog/broker/log/index/offset.py",
    "warmlog/broker/log/appendable_log.py",
    "warmlog/broker/log/log_state.py",
    "warmlog/broker/log/partition_log.py",
    "warmlog/broker/log/reads/reading.py",
    "warmlog/broker/log/io/residency.py",
    "warmlog/broker/log/segments/index_audit.py",
    "warmlog/broker/log/segments/segment.py",
    "warmlog/broker/log/segments/segment_files.py",
    "warmlog/broker/log/segments/segment_map.py",
    "warmlog/broker/log/index/time.py",
    "warmlog/broker/log/index/transaction.py",
    "warmlog/broker/partitions/reads/waiters.py",
    "warmlog/broker/partitions/appends/append.py",
    "warmlog/broker/partitions/appends/append_queue.py",
    "warmlog/broker/partitions/appends/lanes.py",
    "warmlog/broker/partitions/appends/log_flushes.py",
    "warmlog/broker/partitions/appends/replication.py",
    "warmlog/broker/partitions/appends/sequence_gaps.py",
    "warmlog/broker/partitions/disks/disk_workers.py",
    "warmlog/broker/partitions/appends/log_tasks.py",
    "warmlog/broker/partitions/appends/writer.py",
    "warmlog/broker/partitions/partition.py",
    "warmlog/broker/api/dispatch.py",
    "warmlog/broker/api/fetch/fetch.py",
    "warmlog/broker/api/fetch/fetches.py",
    "warmlog/broker/api/fetch/look.py",
    "warmlog/broker/api/records/produce.py",
    "warmlog/broker/net/channel.py",
    "warmlog/broker/net/connection.py",
    "warmlog/broker/net/deadlines.py",
    "warmlog/broker/net/memory_budget.py",
    "warmlog/broker/net/pending_fetch.py",
    "warmlog/broker/net/sender.py",
    "warmlog/broker/net/send_thread.py",
    "warmlog/broker/net/sendfile.py",
    "warmlog/broker/net/services.py",
    "warmlog/broker/net/turn.py",
    "warmlog/broker/log/producers/copies.py",
    "warmlog/broker/log/producers/replay.py",
    "warmlog/broker/api/fetch/session.py",
    "warmlog/broker/api/fetch/sessions.py",
    "warmlog/broker/replication/following/fetch_session.py",
    "warmlog/broker/replication/following/replica.py",
)
FLAGS = ("-O1", "-g0", "-w")  # after Python's own flags; docs/adr/0017 compares the levels
PACKAGES = ("warmlog/protocol", "warmlog/broker")
SUFFIX = EXTENSION_SUFFIXES[0]
WORK = Path("build", f"compiled-{sys.implementation.cache_tag}")
# How the deallocation of a generator begins in mypyc's C: the object can be used again, then it is cleared.
RELEASED = re.compile(r"if \((\w+)_free_instance == NULL\) \{\n( *)\1_free_instance = self;")
Library = tuple[str, Path]  # a module's dotted name, and its file below `WORK`


class Build(build_ext):
    """Builds what is out of date, in parallel."""

    def build_extensions(self) -> None:
        """Build all that can be built; report in one line what cannot, and go on without it."""
        began = time.monotonic()
        self._objects = WORK / "objects" / "".join(FLAGS)
        libraries: list[Library] = []
        try:
            self._check_compiler()
        except Exception as error:  # noqa: BLE001  whatever it is, everything also runs uncompiled
            go_on_without("compiled modules", error)
        else:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                libraries = self._build_all(pool)
            report(f"{len(libraries)} compiled libraries are up to date after {time.monotonic() - began:.0f} s")
        for path in Path(self.build_lib).rglob(f"*{SUFFIX}"):
            path.unlink()  # an earlier build's
        for name, library in libraries:
            target = self.get_ext_fullpath(name)
            self.mkpath(os.path.dirname(target))
            self.copy_file(str(library), target)

    def copy_extensions_to_source(self) -> None:
        """Copy as usual, and delete the libraries that were not built: each would hide a source that has changed."""
        super().copy_extensions_to_source()
        for package in PACKAGES:
            for path in Path(package).rglob(f"*{SUFFIX}"):
                if Path(self.build_lib, path).exists():
                    path.touch()  # newer than its source, also where the translation came out the same
                else:
                    path.unlink()

    def _build_all(self, pool: ThreadPoolExecutor) -> list[Library]:
        libraries = []
        twins = {pool.submit(self._build_cython, source): source for source in CYTHON}
        if len(self.extensions) > len(CYTHON):
            try:
                libraries = self._build_mypyc(pool)
            except Exception as error:  # noqa: BLE001  whatever it is, the modules also run uncompiled
                go_on_without("the modules that mypyc compiles", error)
        for twin, source in twins.items():
            try:
                libraries.append(twin.result())
            except Exception as error:  # noqa: BLE001  the same
                go_on_without(source, error)
        return libraries

    def _build_mypyc(self, pool: ThreadPoolExecutor) -> list[Library]:
        """Build all modules of `MYPYC`. Raises CompileError, or whatever mypyc fails with."""
        show_progress(f"translating {len(MYPYC)} modules to C")
        extensions = translate_mypyc()
        sources = {source: extension for extension in extensions for source in extension.sources}
        largest_first = sorted(sources, key=os.path.getsize, reverse=True)
        # mypyc's runtime is part of every extension but includes only the headers that all have: it is compiled once,
        # before the first one is linked.
        headers = {
            source: set[str].intersection(*(set(one.depends) for one in extensions if source in one.sources))
            for source in sources
        }
        compiling = {
            pool.submit(self._compile, source, sources[source], headers[source]): source for source in largest_first
        }
        try:
            for number, done in enumerate(as_completed(compiling), 1):
                show_progress(f"compiling C files: {number} of {len(compiling)}")
                done.result()
        finally:
            for job in compiling:
                job.cancel()
        return list(pool.map(self._link, extensions))

    def _build_cython(self, source: str) -> Library:
        """Build one extension. Raises CompileError."""
        extension = Extension(module_name(source), [translate_cython(source)])
        self._compile(extension.sources[0], extension)
        return self._link(extension)

    def _check_compiler(self) -> None:
        """Raise CompileError unless there are a C compiler and Python's headers."""
        source = WORK / "check.c"
        source.parent.mkdir(parents=True, exist_ok=True)
        if not source.exists():
            source.write_text("#include <Python.h>\n")
        try:
            self._compile(str(source), Extension("check", []))
        except CompileError as error:
            raise CompileError("no C compiler with Python's headers works (Debian: gcc and python3-dev)") from error

    def _object(self, source: str) -> Path:
        """Return where the object of a C file is."""
        return self._objects / Path(source).with_suffix(".o")

    def _compile(self, source: str, extension: Extension, headers: Iterable[str] = ()) -> None:
        """Compile a C file unless its object is newer than it and the headers. Raises CompileError."""
        if not is_current(self._object(source), [source, *headers]):
            options = {"include_dirs": extension.include_dirs, "extra_postargs": [*FLAGS]}
            try:
                self.compiler.compile([source], output_dir=str(self._objects), **options)
            except CompileError as error:
                raise CompileError(f"the C compiler failed on {source}, see above") from error

    def _link(self, extension: Extension) -> Library:
        """Link the objects of an extension unless that is up to date. Raises LinkError."""
        objects = [self._object(source) for source in extension.sources]
        target = self._objects / self.get_ext_filename(extension.name)
        if not is_current(target, objects):
            self.compiler.link_shared_object([str(path) for path in objects], str(target))
        return extension.name, target


def translate_mypyc() -> list[Extension]:
    """Translate the modules of `MYPYC` to C files, and return the extensions to make of them. Raises CompileError."""
    from mypyc.build import mypycify  # takes a second, and other commands run without mypy

    cache = WORK / "mypy"
    for source in MYPYC:
        # mypyc's own cache of a module lacks what its generated code needs of float and tuple attributes (mypyc 2.4),
        # so each is translated anew; the types of everything else, nearly all of the time, come from mypy's cache.
        for stale in cache.glob(f"*/{os.path.splitext(source)[0]}.*"):
            stale.unlink()
    messages = io.StringIO()
    try:
        with redirect_stdout(messages):
            # Separately: each module has a library and a table of constants, so that a change recompiles one module.
            extensions: list[Extension] = mypycify(
                [f"--cache-dir={cache}", "--no-sqlite-cache", *MYPYC],
                separate=True,
                include_runtime_files=False,
                target_dir=str(WORK / "mypyc"),
            )
    except SystemExit as error:  # how mypyc fails
        raise CompileError(f"mypyc: {messages.getvalue().strip()}") from error
    for extension in extensions:
        extension.sources = [without_reuse(Path(source)) for source in extension.sources]
    return extensions


def without_reuse(source: Path) -> str:
    """Write a translated module that frees generators, coroutines and closures at once, and return its path.

    mypyc (2.4) keeps one freed object of each of these classes, and offers it for reuse before it has cleared it. What
    it clears may release the GIL (a file is closed, a mapping removed) or run a finalizer: another generator that is
    made meanwhile is the same object, and loses its variables while it runs, which is a segmentation fault. Raises
    CompileError if the C code does not look as expected.
    """
    code = source.read_text()
    safe, replaced = RELEASED.subn(r"if (0) {\n\2\1_free_instance = self;", code)
    if replaced != code.count("_free_instance = self;"):
        raise CompileError(f"mypyc translated {source} in a way in which freed generators may be used again")
    if not replaced:
        return str(source)
    target = source.with_name(f"without_reuse_{source.name}")
    if not target.exists() or target.read_text() != safe:
        target.write_text(safe)
    return str(target)


def translate_cython(source: str) -> str:
    """Translate to C unless that is up to date, and return the C file. Raises CompileError."""
    target = WORK / "cython" / Path(source).with_suffix(".c")
    if not is_current(target, [source, *CYTHON[source]]):
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "cython", "-3", "--output-file", str(target), source]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        if child.returncode:
            target.unlink(missing_ok=True)
            raise CompileError(child.stdout + child.stderr)
    return str(target)


def is_current(product: Path, sources: Iterable[str | Path]) -> bool:
    """Whether a file exists and none of its sources is newer."""
    if not product.exists():
        return False
    built_at = product.stat().st_mtime_ns
    return all(os.stat(source).st_mtime_ns <= built_at for source in sources)


def module_name(source: str) -> str:
    """Return the dotted name of a source file's module."""
    return os.path.splitext(source)[0].replace("/", ".")


def show_progress(text: str) -> None:
    """Rewrite the last line of a terminal; elsewhere nothing is shown."""
    if sys.stderr.isatty():
        print(f"\r\033[Kwarmlog: {text}", end="", file=sys.stderr, flush=True)


def report(text: str) -> None:
    """Print a line that stays."""
    show_progress("")
    print(f"\rwarmlog: {text}", file=sys.stderr, flush=True)


def go_on_without(what: str, error: Exception) -> None:
    """Report in one line that a part is left out and why, or raise the error where all parts are required."""
    if os.environ.get("WARMLOG_COMPILED"):
        raise error
    lines = str(error).splitlines() or [type(error).__name__]
    cause = next((line for line in lines if "error:" in line), lines[-1])
    report(f"installing without {what}, which makes it slower and changes nothing else: {shorten(cause, 240)}")


def declared() -> list[Extension]:
    """Return all libraries that a complete build makes: mypyc's are a stub for each module, which loads the code."""
    extensions = [Extension(module_name(source), [source]) for source in CYTHON]
    if not os.environ.get("WARMLOG_PURE"):
        for source in MYPYC:
            extensions += [Extension(module_name(source) + suffix, [source]) for suffix in ("", "__mypyc")]
    for extension in extensions:
        extension.optional = True
    return extensions


def description() -> str:
    """Return the README for a package index, where links to other pages of the repository lead nowhere: as text."""
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]+\)", r"\1", README.read_text(encoding="utf-8"))


setup(
    cmdclass={"build_ext": Build},
    ext_modules=declared(),
    long_description=description(),
    long_description_content_type="text/markdown",
)
