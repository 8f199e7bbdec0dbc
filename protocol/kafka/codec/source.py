"""Generate the straight-line Python source of a plan, and compile it.

The source reads like code written by hand for one version of one message: consecutive fixed-size fields are read by
one `struct` call, arrays are loops, values are created by keyword. `show` prints it, for debugging; without the
compiled engine, this source is executed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from struct import Struct, calcsize
from typing import Any

from warmlog.protocol.kafka.codec.plan import FIXED, Code, ReadPlan, ReadStep, WritePlan, WriteStep, per_reply_steps
from warmlog.protocol.kafka.codec.schema import REQUIRED, not_negative
from warmlog.protocol.kafka.codec.writer import FlexibleWriter, groups, or_null, packed, topic_id_bytes

_NUMBERS = {Code.INT8, Code.INT16, Code.UINT16, Code.INT32, Code.INT64, Code.FLOAT64, Code.BOOLEAN}
_READ_METHODS = {Code.STRING: "string", Code.DATA: "data", Code.BYTES: "copied"}
_WRITE_METHODS = {Code.STRING: "string", Code.DATA: "data", Code.BYTES: "data", Code.RECORDS: "records"}
_LITERALS = (bool, int, str, bytes, type(None))
_UNKNOWN_TOPIC_ID = 100


def reader_source(plan: ReadPlan) -> "GeneratedSource":
    """Return the source of `read(r)`, which reads a message by a Reader."""
    return _ReaderSource(plan).source


def writer_source(plan: WritePlan) -> "GeneratedSource":
    """Return the source of `write(w, value, request)`, which writes a message by a Writer."""
    return _WriterSource(plan).source


class GeneratedSource:
    """The lines of a function, and the objects it refers to."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._indent = ""
        self._taken: set[str] = set()
        self._layouts: dict[str, str] = {}

    def __str__(self) -> str:
        head = [f"{name} = Struct({layout!r})" for layout, name in self._layouts.items()]
        return "\n".join([*head, *self._lines]) + "\n"

    def compile(self, name: str, title: str) -> Callable[..., Any]:
        """Compile the source and return the function of this name."""
        namespace = {"Struct": Struct, **self.names}
        exec(compile(str(self), f"<{title}>", "exec"), namespace)  # noqa: S102  # our own text, from our own tables
        function: Callable[..., Any] = namespace[name]
        return function

    def line(self, text: str) -> None:
        """Add a line."""
        self._lines.append(self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a line that ends in a colon, and indent the lines added within the block."""
        self.line(head)
        before, count = self._indent, len(self._lines)
        self._indent += "    "
        yield
        if len(self._lines) == count:
            self.line("pass")
        self._indent = before

    def fresh(self, name: str) -> str:
        """Return an unused local name."""
        unused, number = name, 1
        while unused in self._taken or unused in self.names or unused in {"r", "w", "request"}:
            number += 1
            unused = f"{name}_{number}"
        self._taken.add(unused)
        return unused

    def layout(self, layout: str) -> str:
        """Name a Struct."""
        return self._layouts.setdefault(layout, f"layout_{len(self._layouts)}")

    def given(self, value: Any, hint: str) -> str:
        """Return an expression for an object of the table."""
        if type(value) in _LITERALS or value == ():
            return repr(value)
        name = hint
        while name in self._taken or (name in self.names and self.names[name] is not value):
            name += "_"
        self.names[name] = value
        return name


class _ReaderSource:
    def __init__(self, plan: ReadPlan) -> None:
        self.source = out = GeneratedSource()
        self._is_checked = False
        with out.block("def read(r):"):
            out.line(f'"""Read {plan.title}."""')
            value = self._struct(plan)
            out.line(f"return r.finish({value})" if self._is_checked else f"return {value}")

    def _struct(self, plan: ReadPlan, inherited: dict[str, str] | None = None) -> str:
        """Generate code that reads a struct; return the expression for its value."""
        out = self.source
        arguments: dict[str, str] = {}
        for step in plan.tagged.values():
            if step.to is not None:
                arguments[step.to] = out.fresh(step.to)
                out.line(f"{arguments[step.to]} = {out.given(plan.constants[step.to], step.to + '_default')}")
        self._steps(plan.steps, arguments)
        if plan.has_tags:
            self._tags(plan, arguments)
        for name, value in plan.constants.items():
            if name not in arguments:
                arguments[name] = out.given(value, f"{name}_default")
        return self._value(plan, arguments | (inherited or {}))

    def _value(self, plan: ReadPlan, arguments: dict[str, str]) -> str:
        if plan.into is None:
            return "{" + ", ".join(f"{name!r}: {value}" for name, value in arguments.items()) + "}"
        into = self.source.given(plan.into, plan.into.__name__ if plan.into.__name__.isidentifier() else "made")
        return f"{into}({', '.join(f'{name}={value}' for name, value in arguments.items())})"

    def _steps(self, steps: Iterable[ReadStep], arguments: dict[str, str]) -> None:
        run: list[ReadStep] = []
        for step in steps:
            if step.code in FIXED and not step.nullable:
                run.append(step)
                continue
            self._fixed(run, arguments)
            run = []
            value = self._field(step)
            if step.to is not None:
                arguments[step.to] = value
        self._fixed(run, arguments)

    def _fixed(self, run: Sequence[ReadStep], arguments: dict[str, str]) -> None:
        """Read consecutive fixed-size fields; those without an argument are padding."""
        if not run:
            return
        out = self.source
        kept = [(step, out.fresh(step.to)) for step in run if step.to is not None]
        layout = "".join(FIXED[step.code] if step.to else f"{calcsize('>' + FIXED[step.code])}x" for step in run)
        targets = "".join(f"{name}, " for _, name in kept)
        out.line(f"{f'{targets.rstrip()} = ' if kept else ''}r.fixed({out.layout('>' + layout)})")
        for step, name in kept:
            arguments[step.to or ""] = name
            if step.code is Code.TOPIC_ID:
                arguments["topic"] = topic = out.fresh("topic")
                out.line(f"{topic} = r.topic_name({name})")
            self._convert(step, name)

    def _field(self, step: ReadStep) -> str:
        """Generate code that reads a variable-size field; return the name of its variable."""
        out = self.source
        name = out.fresh(step.to or step.name)
        if step.code is Code.STRUCT:
            self._nested(step, name)
        elif step.code in {Code.ARRAY, Code.FLAT}:
            self._array(step, name)
        else:
            out.line(f"{name} = r.{'nullable_' if step.nullable else ''}{_READ_METHODS[step.code]}()")
        if not step.nullable:
            self._convert(step, name)
            return name
        if step.null is not None:
            with out.block(f"if {name} is None:"):
                out.line(f"{name} = {out.given(step.null, f'{name}_null')}")
        if step.convert is not None:
            with out.block("else:" if step.null is not None else f"if {name} is not None:"):
                self._convert(step, name)
        return name

    def _convert(self, step: ReadStep, name: str) -> None:
        """Check a value that was read, and convert it."""
        if step.only is not None:
            self._is_checked = True
            with self.source.block(f"if {name} not in {step.only.values!r}:"):
                self.source.line(f"r.refuse({self.source.given(step.only, f'only_{name}')}, {name})")
        if step.convert is not_negative:
            self.source.line(f"{name} = max({name}, 0)")
        elif step.convert is not None:
            self.source.line(f"{name} = {self.source.given(step.convert, f'convert_{step.name}')}({name})")

    def _nested(self, step: ReadStep, name: str) -> None:
        assert step.of is not None
        out = self.source
        if not step.nullable:
            out.line(f"{name} = {self._struct(step.of)}")
            return
        with out.block(f"if r.fixed({out.layout('>b')})[0] < {int(step.tagged)}:"):
            out.line(f"{name} = None")
        with out.block("else:"):
            out.line(f"{name} = {self._struct(step.of)}")

    def _array(self, step: ReadStep, name: str) -> None:
        out = self.source
        if not step.nullable:
            self._elements(step, name, "r.count()")
            return
        count = out.fresh("count")
        out.line(f"{count} = r.nullable_count()")
        with out.block(f"if {count} < 0:"):
            out.line(f"{name} = None")
        with out.block("else:"):
            self._elements(step, name, count)

    def _elements(self, step: ReadStep, name: str, count: str) -> None:
        out = self.source
        if step.element is not None:
            out.line(f"{name} = {self._primitives(step.element, count)}")
            return
        assert step.of is not None
        elements = out.fresh(f"{name}_elements")
        out.line(f"{elements} = []")
        with out.block(f"for _ in range({count}):"):
            if step.code is Code.FLAT:
                self._group(step.of, elements)
            else:
                out.line(f"{elements}.append({self._struct(step.of)})")
        out.line(f"{name} = tuple({elements})")

    def _group(self, plan: ReadPlan, elements: str) -> None:
        assert plan.inner is not None
        assert plan.inner.of is not None
        out = self.source
        arguments: dict[str, str] = {}
        self._steps(plan.steps, arguments)
        with out.block("for _ in range(r.count()):"):
            out.line(f"{elements}.append({self._struct(plan.inner.of, arguments)})")
        if plan.has_tags:
            out.line("r.tags()")

    def _primitives(self, code: Code, count: str) -> str:
        if code in _NUMBERS:
            return f"r.numbers({count}, {FIXED[code]!r}, {calcsize('>' + FIXED[code])})"
        read = f"r.fixed({self.source.layout('>16s')})[0]" if code in FIXED else f"r.{_READ_METHODS[code]}()"
        return f"tuple([{read} for _ in range({count})])"

    def _tags(self, plan: ReadPlan, arguments: dict[str, str]) -> None:
        out = self.source
        if not plan.tagged:
            out.line("r.tags()")
            return
        with out.block("for _ in range(r.tag_count()):"):
            out.line("tag, tag_end = r.tag()")
            for slot, (tag, step) in enumerate(plan.tagged.items()):
                with out.block(f"{'elif' if slot else 'if'} tag == {tag}:"):
                    out.line("tag_start = r.position")
                    read: dict[str, str] = {}
                    self._steps((step,), read)
                    for name, value in read.items():
                        out.line(f"{arguments[name]} = {value}")
                    out.line("r.end_tag(tag, tag_start, tag_end)")
            with out.block("else:"):
                out.line("r.skip_tag(tag_end)")


class _WriterSource:
    def __init__(self, plan: WritePlan) -> None:
        self.source = out = GeneratedSource()
        out.names |= {"FlexibleWriter": FlexibleWriter, "groups": groups, "or_null": or_null, "packed": packed}
        out.names["topic_id_bytes"] = topic_id_bytes
        self._flexible = plan.flexible
        self._per_reply: dict[Any, str] = {}
        value = out.fresh("value")
        with out.block(f"def write(w, {value}, request):"):
            out.line(f'"""Write {plan.title}."""')
            for step in per_reply_steps(plan):
                name = self._per_reply[step] = out.fresh(step.name)
                out.line(f"{name} = {out.given(step.per_reply, f'get_{step.name}')}(request, {step.version})")
            self._struct(plan, value, "w")

    def _struct(self, plan: WritePlan, owner: str, w: str, unknown: str = "") -> None:
        run: list[WriteStep] = []
        for step in plan.steps:
            if (step.code in FIXED or step.code is Code.CONSTANT) and not step.nullable:
                run.append(step)
                continue
            self._fixed(run, owner, w, unknown)
            run = []
            self._field(step, owner, w)
        self._fixed(run, owner, w, unknown)
        if plan.tagged:
            self._tagged(plan.tagged, owner, w)

    def _fixed(self, run: Sequence[WriteStep], owner: str, w: str, unknown: str) -> None:
        """Write consecutive fixed-size fields."""
        if not run:
            return
        out = self.source
        if all(step.code is Code.CONSTANT for step in run):
            out.line(f"{w}.raw({b''.join(step.constant for step in run)!r})")
            return
        layout, values = ">", []
        for step in run:
            if step.code is Code.CONSTANT:
                layout += f"{len(step.constant)}s"
                values.append(repr(step.constant))
            else:
                layout += FIXED[step.code]
                values.append(self._fixed_value(step, owner, unknown))
        out.line(f"{w}.raw(packed({out.layout(layout)}, {', '.join(values)}))")

    def _fixed_value(self, step: WriteStep, owner: str, unknown: str) -> str:
        if step.code is Code.THROTTLE:
            return "w.throttle_ms"
        value = self._value(step, owner)
        if step.code in {Code.UUID, Code.TOPIC_ID}:
            return f"topic_id_bytes({value})"
        if step.replaced is not None:
            value = f"{self.source.given(step.replaced, 'replaced')}.get({value}, {value})"
        return f"{_UNKNOWN_TOPIC_ID} if {unknown} else {value}" if step.code is Code.ERROR and unknown else value

    def _value(self, step: WriteStep, owner: str) -> str:
        out = self.source
        if step.key is not None:
            if step.default is REQUIRED:
                return f"{owner}[{step.key!r}]"
            return f"{owner}.get({step.key!r}, {out.given(step.default, f'{step.key}_default')})"
        if step.per_reply is not None:
            value = self._per_reply[step]
        elif step.get is not None:
            value = f"{out.given(step.get, f'get_{step.name}')}({owner}, request, {step.version})"
        else:
            value = f"{owner}.{step.attr}"
        if step.nullable or step.null is not None:
            return f"or_null({value}, {out.given(step.null, f'{step.name}_null')})"
        return value

    def _field(self, step: WriteStep, owner: str, w: str) -> None:
        """Write a variable-size field."""
        out = self.source
        if step.code not in {Code.STRUCT, Code.ARRAY, Code.FLAT}:
            nullable = "nullable_" if step.nullable else ""
            out.line(f"{w}.{nullable}{_WRITE_METHODS[step.code]}({self._value(step, owner)})")
            return
        name = out.fresh(step.name)
        out.line(f"{name} = {self._value(step, owner)}")
        if not step.nullable:
            self._parts(step, name, owner, w)
            return
        with out.block(f"if {name} is None:"):
            null = b"\xff" if step.tag is None else b"\0"
            out.line(f"{w}.raw({null!r})" if step.code is Code.STRUCT else f"{w}.length(-1)")
        with out.block("else:"):
            if step.code is Code.STRUCT:
                out.line(f"{w}.raw(b'\\x01')")
            self._parts(step, name, owner, w)

    def _parts(self, step: WriteStep, name: str, owner: str, w: str) -> None:
        out = self.source
        if step.code is Code.STRUCT:
            assert step.of is not None
            self._struct(step.of, name, w)
            return
        if step.code is Code.FLAT:
            self._flat(step, name, owner, w)
            return
        out.line(f"{w}.count(len({name}))")
        element = out.fresh("element")
        if step.element is not None and step.element in _NUMBERS:
            out.line(f"{w}.raw(packed(Struct(f'>{{len({name})}}{FIXED[step.element]}'), *{name}))")
            return
        with out.block(f"for {element} in {name}:"):
            if step.element is None:
                assert step.of is not None
                self._struct(step.of, element, w)
            elif step.element in FIXED:
                out.line(f"{w}.raw(topic_id_bytes({element}))")
            else:
                out.line(f"{w}.{_WRITE_METHODS[step.element]}({element})")

    def _flat(self, step: WriteStep, name: str, owner: str, w: str) -> None:
        assert step.of is not None
        assert step.of.inner is not None
        assert step.of.inner.of is not None
        out = self.source
        keys = name if step.keys is None else f"{out.given(step.keys, 'keys_of')}({owner}, request)"
        runs, key, run, element = (out.fresh(hint) for hint in ("runs", "key", "run", "element"))
        by = out.given(attrgetter(*step.of.group_attrs), f"by_{'_and_'.join(step.of.group_attrs)}")
        out.line(f"{w}.work(len({name}))")
        out.line(f"{runs} = groups({name}, {keys}, {by})")
        out.line(f"{w}.count(len({runs}))")
        with out.block(f"for {key}, {run} in {runs}:"):
            unknown = ""
            if step.keys is not None:
                unknown = out.fresh("unknown")
                out.line(f'{unknown} = {key}.topic == ""')
            self._struct(WritePlan("", self._flexible, has_tags=False, steps=step.of.steps), key, w)
            out.line(f"{w}.length(len({run}))")
            with out.block(f"for {element} in {run}:"):
                self._struct(step.of.inner.of, element, w, unknown)
            if step.of.has_tags:
                out.line(f"{w}.tags()")

    def _tagged(self, tagged: Sequence[WriteStep], owner: str, w: str) -> None:
        """Write the tagged fields that differ from their defaults."""
        out = self.source
        fields, part = out.fresh("fields"), out.fresh("part")
        out.line(f"{fields} = []")
        for step in tagged:
            default = out.given(step.default, f"{step.name}_default")
            value = f"{owner}.get({step.key!r}, {default})" if step.key is not None else self._value(step, owner)
            with out.block(f"if {value} != {default}:"):
                out.line(f"{part} = FlexibleWriter(b'')")
                self._struct(WritePlan("", self._flexible, has_tags=False, steps=(step,)), owner, part)
                out.line(f"{fields}.append(({step.tag}, {part}.written()))")
        out.line(f"{w}.tagged({fields})")
