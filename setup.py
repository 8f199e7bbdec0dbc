"""What of the packages is compiled; pyproject.toml says all the rest.

Two kinds. The loops over bytes (`TWINS`) are Cython, each the twin of a pure module. The modules that every request
goes through (`COMPILED`) are plain typed Python, and mypyc compiles these very files: there is one source, and it runs
either way.

All of it is optional: without a compiler the install goes on with what Python runs by itself. With WARMLOG_PURE set
only the twins are built.
"""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

READING = "protocol/records/_reading.pxi"  # the parser of records that two of the twins share
TWINS = (
    Extension("broker._measuring", ["broker/_measuring.pyx"]),
    Extension("broker.log._asking", ["broker/log/_asking.pyx"]),
    Extension("broker.log._scan", ["broker/log/_scan.pyx"]),
    Extension("protocol.kafka.codec._compiled", ["protocol/kafka/codec/_compiled.pyx"]),
    Extension("protocol.records._codec", ["protocol/records/_codec.pyx"], depends=[READING]),
    Extension("protocol.records._columns", ["protocol/records/_columns.pyx"], depends=[READING]),
    Extension("protocol.records._compaction", ["protocol/records/_compaction.pyx"]),
)
COMPILED = (
    "protocol/frame.py",
    "protocol/records/batch.py",
    "protocol/records/validation.py",
    "broker/log/active_writer.py",
    "broker/log/append.py",
    "broker/log/appender.py",
    "broker/log/files.py",
    "broker/log/flush.py",
    "broker/log/index_search.py",
    "broker/log/log_scan.py",
    "broker/log/mapped_index.py",
    "broker/log/offset_index.py",
    "broker/log/partition_log.py",
    "broker/log/reading.py",
    "broker/log/residency.py",
    "broker/log/segment.py",
    "broker/log/segments.py",
    "broker/log/time_index.py",
    "broker/waiters.py",
    "broker/disk_workers.py",
    "broker/writer.py",
    "broker/partition.py",
    "broker/api/dispatch.py",
    "broker/api/fetch.py",
    "broker/api/produce.py",
    "broker/net/connection.py",
    "broker/net/inflight.py",
    "broker/net/outbox.py",
    "broker/net/sender.py",
    "broker/net/sendfile.py",
    "broker/net/services.py",
)
LIBRARY = "warmlog_compiled"  # the compiled modules call each other directly, so they lie in one library


class Build(build_ext):
    """Builds what can be built: each twin by itself, of the compiled modules all or none."""

    def finalize_options(self) -> None:
        """Have mypyc translate, only now: it takes a while, and other commands need none of it."""
        modules = self.distribution.ext_modules
        if len(modules) == len(TWINS) and not os.environ.get("WARMLOG_PURE"):
            from mypyc.build import mypycify

            modules += mypycify([*COMPILED], opt_level="3", group_name=LIBRARY)
        super().finalize_options()

    def build_extensions(self) -> None:
        """Take the doors to the library away again if it could not be built itself."""
        for extension in self.extensions:
            extension.optional = True
        super().build_extensions()
        library = Path(self.get_ext_fullpath(f"{LIBRARY}__mypyc"))
        if library.exists():
            library.touch()  # as new as the sources, also where the translation came out the same: tests look at it
            return
        for module in COMPILED:
            Path(self.get_ext_fullpath(module.removesuffix(".py").replace("/", "."))).unlink(missing_ok=True)


setup(cmdclass={"build_ext": Build}, ext_modules=[*TWINS])
