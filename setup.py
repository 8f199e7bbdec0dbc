"""Compile what `[tool.warmlog.compiled]` in pyproject.toml lists, and add the console's libraries from npm.

Everything else about the distribution is in pyproject.toml, too.

Compiling is optional: what is not compiled runs as Python, slower. The modules of one translator are built all or none,
because compiled modules call each other directly; what is left out is reported in one line. WARMLOG_COMPILED=1 makes
that an error, WARMLOG_PURE=1 compiles nothing.
"""

import io
import os
import re
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from textwrap import shorten

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError
from setuptools.modified import newer

ROOT = Path(__file__).parent
COMPILED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["warmlog"]["compiled"]
PACKAGES = ("warmlog/protocol", "warmlog/broker")
# After Python's own flags; docs/adr/0017 compares the levels. Libraries call their own functions directly.
FLAGS = ["-O2", "-g0", "-w", "-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt"]
CORES = len(os.sched_getaffinity(0))
WORK = Path("build", f"compiled-{sys.implementation.cache_tag}")
# How the deallocation of a generator begins in mypyc's C: the object can be used again, then it is cleared.
RELEASED = re.compile(r"if \((\w+)_free_instance == NULL\) \{\n( *)\1_free_instance = self;")
# How mypyc's C replaces an attribute's value, or a tuple's: it frees the old one first.
ATTRIBUTE = r"self->_\w+|\(\(\w+ \*\)\w+\)->_\w+"
REPLACED = re.compile(
    rf"if \(({ATTRIBUTE})((?:\.f0)?) != NULL\) \{{\n((?: *CPy_DECREF\(\1[.\w]*\);\n)+) *\}}\n *\1 = (\w+);"
)
FREED_FIRST = re.compile(rf"CPy_DECREF\((?:{ATTRIBUTE})")


class Build(build_ext):
    """Translates and compiles what has changed, on all cores."""

    def finalize_options(self) -> None:
        """Keep what a build into the checkout makes for the next one, also where setuptools builds in a new folder."""
        super().finalize_options()
        if self.inplace:
            self.build_lib, self.build_temp = str(WORK / "libraries"), str(WORK / "objects")

    def build_extensions(self) -> None:
        """Build all that can be built; report in one line what cannot, and go on without it."""
        self.parallel = CORES
        declared, built = self.extensions, []
        try:
            self._check_compiler()
            for translate in (cython, mypyc):
                self.extensions = [one for one in declared if one.sources[0] in COMPILED[translate.__name__]]
                try:
                    self._build(translate)
                    built += self.extensions
                except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, everything also runs uncompiled
                    go_on_without(f"the modules that {translate.__name__} compiles", error)
        except CompileError as error:
            go_on_without("compiled modules", error)
        self.extensions = built
        paths = {self.get_ext_fullpath(one.name) for one in built}
        for path in set(map(str, Path(self.build_lib).rglob(f"*{EXTENSION_SUFFIXES[0]}"))) - paths:
            os.unlink(path)  # an earlier build's

    def copy_extensions_to_source(self) -> None:
        """Copy as usual, and delete the libraries that were not built."""
        super().copy_extensions_to_source()
        for path in (path for package in PACKAGES for path in Path(package).rglob(f"*{EXTENSION_SUFFIXES[0]}")):
            if not Path(self.build_lib, path).exists():
                path.unlink()

    def _check_compiler(self) -> None:
        """Raise CompileError unless there are a C compiler and Python's headers."""
        source = WORK / "check.c"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("#include <Python.h>\n")
        try:
            self.compiler.compile([str(source)], self.build_temp)
        except CompileError as error:
            raise CompileError("no C compiler with Python's headers works (Debian: gcc and python3-dev)") from error

    def _build(self, translate) -> None:  # noqa: ANN001
        """Build the extensions of one translator. Raises CompileError, or whatever the translator fails with."""
        began = time.time()
        libraries = {Path(self.get_ext_fullpath(one.name)): one.sources[0] for one in self.extensions}
        # mypyc copies constants and types of imported modules into the code, whether it compiles these or not.
        imported = "*.px[di]" if translate is cython else "*.py"
        included = [path for package in PACKAGES for path in Path(package).rglob(imported)]
        newest = max(map(os.path.getmtime, ["setup.py", *included, *libraries.values()]))
        listed = WORK / f"{translate.__name__}.txt"  # compiled modules refer to others that were compiled with them
        names = "\n".join(COMPILED[translate.__name__])
        is_same = listed.exists() and listed.read_text(encoding="utf-8") == names
        if is_same and all(library.exists() and library.stat().st_mtime >= newest for library in libraries):
            return
        report(f"compiling {len(COMPILED[translate.__name__])} modules with {translate.__name__}")
        translated = translate(COMPILED[translate.__name__])
        try:
            for made in translated:
                made.extra_compile_args = FLAGS
                made.depends = [*made.depends, "setup.py"]  # and the headers of modules that it calls directly
                made.extra_objects = self._compile_runtime(made)
                vars(self.ext_map[made.name]).update(vars(made), optional=False)
            super().build_extensions()
        except CompileError as error:
            raise CompileError("the C compiler failed, see above") from error
        for library, source in libraries.items():
            # Newer than the source, also where the translation came out the same, unless that was edited meanwhile.
            os.utime(library, None if os.path.getmtime(source) < began else (began, began))
        listed.write_text(names, encoding="utf-8")

    def _compile_runtime(self, extension: Extension) -> list[str]:
        """Compile what all libraries of mypyc contain unless that is up to date, and return the objects."""
        sources = [source for source in extension.sources if Path(source).parent == WORK / "mypyc"]
        extension.sources = [source for source in extension.sources if source not in sources]
        objects = self.compiler.object_filenames(sources, output_dir=self.build_temp)
        stale = [pair[0] for pair in zip(sources, objects, strict=True) if newer(*pair) or newer("setup.py", pair[1])]
        options = {"include_dirs": extension.include_dirs, "extra_postargs": FLAGS}
        with ThreadPoolExecutor(CORES) as pool:
            list(pool.map(lambda source: self.compiler.compile([source], self.build_temp, **options), stale))
        return objects


class BuildFiles(build_py):
    """Copies the package, with the libraries of the console's page."""

    def run(self) -> None:
        """Fetch what is missing first; without npm, go on without the page."""
        fetch_libraries()
        super().run()


class Source(sdist):
    """A source distribution has the libraries, so that it can be installed without npm."""

    def run(self) -> None:
        """Fetch what is missing first."""
        fetch_libraries()
        super().run()


def fetch_libraries() -> None:
    """Run warmlog/ui/vendor.py, which does nothing if the libraries are there and reports in one line if it fails."""
    script = ROOT / "warmlog" / "ui" / "vendor.py"
    subprocess.run([sys.executable, str(script), "--optional"], check=True)  # noqa: S603  # a script of ours


def cython(modules: list[str]) -> list[Extension]:
    """Translate modules to C. Raises CompileError."""
    from Cython.Build import cythonize  # other commands do without

    extensions = [Extension(module_name(source), [source]) for source in modules]
    directives = {"language_level": 3, "embedsignature": False, "binding": False, "cdivision": True}
    options = {"build_dir": str(WORK / "cython"), "nthreads": CORES, "quiet": True}
    made: list[Extension] = cythonize(extensions, compiler_directives=directives, **options)
    return made


def mypyc(modules: list[str]) -> list[Extension]:
    """Translate modules to C. Raises CompileError."""
    from mypyc.build import mypycify  # the same

    cache = WORK / "mypy"
    for source in modules:
        # mypyc's own cache of a module lacks what its generated code needs of float and tuple attributes (mypyc 2.4),
        # so each is translated anew; the types of everything else, nearly all of the time, come from mypy's cache.
        for stale in cache.glob(f"*/{os.path.splitext(source)[0]}.*"):
            stale.unlink()
    messages = io.StringIO()
    options = [f"--cache-dir={cache}", "--no-sqlite-cache"]
    try:
        with redirect_stdout(messages):
            # Separately: each module has a library and a table of constants, so that a change recompiles one module.
            extensions: list[Extension] = mypycify(
                [*options, *modules], separate=True, include_runtime_files=False, target_dir=str(WORK / "mypyc")
            )
    except SystemExit as error:  # how mypyc fails
        raise CompileError(f"mypyc: {messages.getvalue().strip()}") from error
    for extension in extensions:
        extension.sources = [made_safe(Path(source)) for source in extension.sources]
    return extensions


def made_safe(source: Path) -> str:
    """Write a translated module that frees objects only when they are unreachable, and return its path.

    What an object holds may release the GIL when it is freed (a file is closed, a mapping removed) or run a finalizer.
    Raises CompileError if the C code does not look as expected.
    """
    code = source.read_text()
    safe = with_late_frees(without_reuse(code, source), source)
    if safe == code:
        return str(source)
    target = source.with_name(f"safe_{source.name}")
    if not target.exists() or target.read_text() != safe:
        target.write_text(safe)
    return str(target)


def without_reuse(code: str, source: Path) -> str:
    """Free generators, coroutines and closures at once. Raises CompileError.

    mypyc (2.4) keeps one freed object of each of these classes, and offers it for reuse before it has cleared it.
    Another generator that is made meanwhile is the same object, and loses its variables while it runs, which is a
    segmentation fault.
    """
    safe, replaced = RELEASED.subn(r"if (0) {\n\2\1_free_instance = self;", code)
    if replaced != code.count("_free_instance = self;"):
        raise CompileError(f"mypyc translated {source} in a way in which freed generators may be used again")
    return safe


def with_late_frees(code: str, source: Path) -> str:
    """Free the old value of an attribute after the new one is in its place. Raises CompileError.

    mypyc (2.4) frees it first: another thread that reads the attribute meanwhile uses an object that is being freed,
    which is a segmentation fault.
    """

    def late(found: re.Match[str]) -> str:
        attribute, field, frees, value = found.groups()
        freed = frees.replace(attribute, "before").replace("\n", " ")
        return (
            f"{{ __typeof__({attribute}) before = {attribute}; {attribute} = {value};\n"
            f"    if (before{field} != NULL) {{ {freed}}} }}"
        )

    safe = REPLACED.sub(late, code)
    if FREED_FIRST.search(safe):
        raise CompileError(f"mypyc translated {source} in a way in which attributes refer to freed objects")
    return safe


def go_on_without(what: str, error: BaseException) -> None:
    """Report in one line that a part is left out and why, or raise the error where all parts are required."""
    if os.environ.get("WARMLOG_COMPILED"):
        raise error
    lines = str(error).splitlines() or [type(error).__name__]
    cause = next((line for line in lines if "error:" in line), lines[-1])
    reason = shorten(cause, 240)
    report(f"installing without {what}, which makes it slower and changes nothing else: {reason}")


def report(text: str) -> None:
    """Print a line that a user sees."""
    print(f"warmlog: {text}", file=sys.stderr, flush=True)


def module_name(source: str) -> str:
    """Return the dotted name of a source file's module."""
    return os.path.splitext(source)[0].replace("/", ".")


def declared() -> list[Extension]:
    """Return the libraries of a complete build. mypyc makes two for a module: its code, and a stub that loads it."""
    if os.environ.get("WARMLOG_PURE"):
        return []
    names = [(module_name(source), source) for kind in COMPILED.values() for source in kind]
    names += [(f"{module_name(source)}__mypyc", source) for source in COMPILED["mypyc"]]
    return [Extension(name, [source], optional=True) for name, source in names]


def description() -> str:
    """Return the README for a package index, where links to other pages of the repository lead nowhere: as text."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]+\)", r"\1", readme)


setup(
    cmdclass={"build_ext": Build, "build_py": BuildFiles, "sdist": Source},
    ext_modules=declared(),
    long_description=description(),
    long_description_content_type="text/markdown",
)
