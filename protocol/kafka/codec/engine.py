"""Choose the engine that runs plans: the compiled engine if it was built, otherwise the pure one.

WARMLOG_PURE=1 in the environment selects the pure one. The reader or writer of a table in one version is created at its
first use and cached.
"""

from dataclasses import dataclass

from warmlog.protocol.kafka.codec import pure
from warmlog.protocol.kafka.codec.plan import read_plan, write_plan
from warmlog.protocol.kafka.codec.schema import Struct
from warmlog.protocol.records import codec


@dataclass(frozen=True, slots=True)
class Engine:
    """The classes of one engine; `pure` documents them.

    loop_work: units of work (`bounds.py`) that the event loop may do without a pause, about 1 to 3 ms.
    """

    name: str
    loop_work: int
    reader_type: type[pure.MessageReader]
    writer_type: type[pure.MessageWriter]
    decoder_type: type[pure.RequestDecoder]
    encoder_type: type[pure.ReplyEncoder]

    def reader(
        self, table: Struct, version: int, *, flexible: bool, bound: bool = False, title: str = "a message"
    ) -> pure.MessageReader:
        """Return the reader of a table in one version and form."""
        key = (self.reader_type, version, flexible, bound)
        made: pure.MessageReader | None = table.made.get(key)
        if made is None:
            plan = read_plan(table, version, flexible=flexible, bound=bound, title=title)
            made = table.made[key] = self.reader_type(plan)
        return made

    def writer(
        self, table: Struct, version: int, *, flexible: bool, bound: bool = False, title: str = "a message"
    ) -> pure.MessageWriter:
        """Return the writer of a table in one version and form."""
        key = (self.writer_type, version, flexible, bound)
        made: pure.MessageWriter | None = table.made.get(key)
        if made is None:
            plan = write_plan(table, version, flexible=flexible, bound=bound, title=title)
            made = table.made[key] = self.writer_type(plan)
        return made


PURE = Engine("pure", 512, pure.MessageReader, pure.MessageWriter, pure.RequestDecoder, pure.ReplyEncoder)


def _compiled() -> Engine | None:
    if not codec.compiled:
        return None
    try:
        from warmlog.protocol.kafka.codec import _compiled as made  # imported only if it was built and is not disabled
    except ImportError:
        return None
    return Engine("compiled", 4096, made.MessageReader, made.MessageWriter, made.RequestDecoder, made.ReplyEncoder)


ENGINE = _compiled() or PURE
