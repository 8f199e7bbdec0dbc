"""Write the reference of the Python client from its source: signatures as they are written, and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import warmlog.client
import warmlog.testing

SECTIONS = {
    "Connecting": ("connect", "Client", "Settings"),
    "The client": ("AsyncClient",),
    "Records and results": (
        "Message",
        "RecordMetadata",
        "Delivery",
        "BlockingDelivery",
        "Summary",
        "PartitionSummary",
        "ConsumedRecord",
        "Topic",
        "OpenTransaction",
    ),
    "Types of a program": ("Format", "Serializer", "TypedRecord"),
    "Streams": ("RecordStream", "BatchStream", "GroupRecordStream", "GroupBatchStream", "BlockingGroupStream"),
    "Transactions": ("Transaction", "BlockingTransaction"),
    "Errors": (
        "WarmlogError",
        "ConnectError",
        "ConnectionLostError",
        "RequestTimeoutError",
        "ClosedError",
        "BufferFullError",
        "BrokerError",
        "UnknownTopicError",
        "TopicExistsError",
        "OffsetOutOfRangeError",
        "UnknownGroupError",
        "GroupMovedOnError",
        "GroupNotEmptyError",
        "ProducerFencedError",
    ),
    "Types": (
        "Start",
        "Topics",
        "GroupProtocol",
        "RebalanceCallback",
        "IsolationName",
        "OutOfRange",
        "Producible",
        "Acks",
        "Compression",
    ),
}


_EQUALS = re.compile(r"(?<=[\w\])])=(?=[\w\"'(\[-])")  # ast.unparse omits the spaces


def python_api() -> str:
    """Describe every name that `warmlog` exports, and `warmlog.testing`."""
    parts = []
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        if title == "Types":
            parts += [f"- `{name}`: `{alias_of(name)}`" for name in names]
            parts.append("")
        else:
            parts += [described(name, getattr(warmlog.client, name)) for name in names]
    parts += ["## warmlog.testing\n", described("Broker", warmlog.testing.Broker)]
    return "\n".join(parts)


def described(name: str, found: Any) -> str:
    """Describe a class or a function."""
    node = syntax(found)
    if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
        return f"### {name}\n\n{signature(node, name)}\n{text(node)}"
    bases = [base.__name__ for base in found.__bases__ if base.__module__.startswith("warmlog") and "Error" in name]
    parts = [f"### {name}\n"]
    if bases:
        parts.append(f"A `{bases[0]}`.\n")
    parts.append(text(node))
    if fields := [
        ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign) and is_public(each.target)
    ]:
        parts.append("```text\n" + "\n".join(fields) + "\n```\n")
    if "Error" not in name:
        parts += [member(name, each) for each in public_methods(found)]
    return "\n".join(parts)


def member(owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Describe a method or a property."""
    if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
        returned = ast.unparse(node.returns) if node.returns else ""
        return f"#### {owner}.{node.name}\n\nA property: `{returned}`.\n\n{text(node)}"
    return f"#### {owner}.{node.name}\n\n{signature(node, node.name)}\n{text(node)}"


def public_methods(found: type) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public methods of a class and its bases in this project; for overloads, the implementation."""
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for each in reversed(found.__mro__):
        if each.__module__.startswith("warmlog"):
            for node in syntax(each).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                    methods[node.name] = node
    yield from (node for node in methods.values() if ast.get_docstring(node))


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """Write a function's signature as a block of code."""
    arguments = node.args
    arguments.args = [each for each in arguments.args if each.arg != "self"]
    words = "async def" if isinstance(node, ast.AsyncFunctionDef) and name != "connect" else "def"
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{words} {name}({ast.unparse(arguments)}){returned}"
    if len(line) > 100:
        inside = ",\n    ".join(split_arguments(ast.unparse(arguments)))
        line = f"{words} {name}(\n    {inside},\n){returned}"
    return f"```text\n{_EQUALS.sub(' = ', line)}\n```\n"


def split_arguments(arguments: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def text(node: ast.AST) -> str:
    """Return a docstring as Markdown."""
    found = ast.get_docstring(node) or ""  # type: ignore[arg-type]
    paragraphs = [" ".join(part.split()) for part in found.split("\n\n")]
    return (
        "\n\n".join(textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False) for part in paragraphs)
        + "\n"
    )


def syntax(found: Any) -> Any:
    """Return the syntax tree of a class or a function."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(found)))).body[0]


def alias_of(name: str) -> str:
    """Return the type behind an alias, as written in its module."""
    client = warmlog.client
    for module in (
        client.consuming.subscription,
        client.groups.member_options,
        client.groups.rebalance_callbacks,
        client.producing.producer,
        client.settings,
    ):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value:
                return ast.unparse(node.value)
    raise KeyError(name)


def is_public(target: ast.expr) -> bool:
    """Return whether a field's name does not begin with an underscore."""
    return not ast.unparse(target).startswith("_")
