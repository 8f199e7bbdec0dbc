"""Build the distribution from a clean copy of the sources, and run what was built."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "broker", "warmlog", "pyspark_warmlog")
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", *PACKAGES)
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.so", "_*.c")
#: Variables that would let a child find the checkout, or build otherwise than a user does.
OURS = ("PYTHONPATH", "WARMLOG_PURE", "WARMLOG_COMPILED", "CC", "CFLAGS")
#: `--no-compile`, of which pip reads the opposite in the environment: byte code is written only of what is imported.
QUICK = {"PIP_NO_COMPILE": "0"}
WORK = Path("build", f"compiled-{sys.implementation.cache_tag}")
RUNTIME = Path(sysconfig.get_path("platlib"), "mypyc", "lib-rt")
#: In the shell of a compiler: copy the object of `cc ... -IDIRECTORY/lib-rt ... -c SOURCE -o OBJECT ...` if the
#: checkout has the same source and, for mypyc, the same headers of all modules and of mypyc.
REUSE = f"""
for argument; do
    case "$before" in -c) source=$argument;; -o) object=$argument;; esac
    case "$argument" in -I*/lib-rt) runtime=${{argument#-I}};; esac
    before=$argument
done
kept='{ROOT}'/{WORK}/objects/${{source%.c}}.o
same() {{ diff -qr -x '*.c' -x __pycache__ "$@" >/dev/null; }}
if [ "$kept" -nt '{ROOT}'/"$source" ] && cmp -s '{ROOT}'/"$source" "$source"; then
    case "$source" in
        */cython/*) exec cp "$kept" "$object";;
        */mypyc/*) if same '{ROOT}'/{WORK}/mypyc {WORK}/mypyc && same '{RUNTIME}' "$runtime"; then
            exec cp "$kept" "$object"
        fi;;
    esac
fi
"""
#: Prints whether the record codec and the modules of mypyc are compiled, and where they were imported from.
INSPECT = """
from warmlog.broker.log.appends import appender
from warmlog.broker.log.segments import segment
from warmlog.protocol.records import codec
print(codec.compiled, appender.__file__.endswith(".so"), segment.__file__.endswith(".so"))
print(codec.__file__, appender.__file__)
"""
#: A broker of the package's own in this process, a record in and out.
SERVE = """
from warmlog import Client
from warmlog.testing import Broker
with Broker() as broker, Client(broker.native) as client:
    client.produce("orders", value=b"one")
    print([record.value for record in client.consume("orders", start="beginning", until_end=True)])
"""


def copy_sources(target: Path) -> Path:
    """Copy what a fresh clone has of the packages and their build, and return the new directory."""
    target.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=NOT_SOURCES)
        else:
            shutil.copy(ROOT / name, target)
    return target


def user_environment(**changes: str) -> dict[str, str]:
    """Return this process's variables without `OURS`, with `QUICK` and with the changes."""
    return {**{name: value for name, value in os.environ.items() if name not in OURS}, **QUICK, **changes}


def pip(*arguments: str, python: Path | str = sys.executable, **environment: str) -> str:
    """Run pip and return all its output. Raises AssertionError with that if it fails."""
    done = subprocess.run(
        [str(python), "-m", "pip", *arguments, "--disable-pip-version-check"],
        env=user_environment(**environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def build_offline(target: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel with the tools and the dependencies of this environment; return it and pip's output."""
    source = copy_sources(target / "source")
    options = ["--verbose", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(target)]
    output = pip("wheel", *options, str(source), **environment)
    (wheel,) = target.glob("*.whl")
    return wheel, output


def quick_compiler(path: Path, refused: str = "") -> str:
    """Write a C compiler that does not optimize, and return its path.

    It copies the object that `make setup` has compiled of the same code, with the same headers. `refused`: a pattern of
    the shell; the compiler fails with any arguments that it matches.
    """
    fails = f'case "$*" in {refused}) echo "out of memory" >&2; exit 1;; esac\n' if refused else ""
    path.write_text(f"#!/bin/sh\n{fails}{REUSE}" + 'exec cc "$@" -O0\n')
    path.chmod(0o755)
    return str(path)


def left_out(output: str) -> list[str]:
    """Return the build's lines about parts that it left out."""
    return re.findall(r"warmlog: (installing without .*)", output)


def names_in(wheel: Path) -> set[str]:
    """Return the paths of all files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def run_unpacked(wheel: Path, *arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python, in a directory, so that it finds warmlog in the unpacked wheel, ahead of the checkout."""
    target = wheel.parent / "unpacked"
    if not target.exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return subprocess.run(
        [sys.executable, *arguments],
        env=user_environment(PYTHONPATH=str(target)), cwd=directory or wheel.parent,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
