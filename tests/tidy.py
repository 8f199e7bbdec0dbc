"""Checks of the shape of the source: sizes, import circles, contracts, unused names. Used by test_tidy.py.

Each takes the root of a checkout and returns what is wrong, so that tests can plant faults in a tree of their own.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

TOPS = ("broker", "protocol", "warmlog")
MAX_LINES = 450
MAX_MODULES = 15


def modules(root: Path, *, kinds: tuple[str, ...] = (".py", ".pyx")) -> Iterator[Path]:
    """Yield the source files of the product; `broker` and `protocol` are symbolic links inside `warmlog`."""
    for top in TOPS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in kinds and not any(
                parent.is_symlink() for parent in path.parents if parent.is_relative_to(root)
            ):
                yield path


def long_modules(root: Path) -> dict[str, int]:
    """Return the modules with too many lines, with their number."""
    sizes = {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in modules(root)}
    return {path: lines for path, lines in sizes.items() if lines > MAX_LINES}


def full_folders(root: Path) -> dict[str, int]:
    """Return the folders with too many modules, with their number."""
    counts = Counter(str(path.parent.relative_to(root)) for path in modules(root) if path.stem != "__init__")
    return {folder: count for folder, count in counts.items() if count > MAX_MODULES}


# -- circles -----------------------------------------------------------------------------------------------------------


def module_name(root: Path, path: Path) -> str:
    """Return the dotted name of a source file as it is imported."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(
        part for part in ("" if parts[0] == "warmlog" else "warmlog", *parts) if part not in ("", "__init__")
    )


def imports(root: Path) -> dict[str, set[str]]:
    """Return which modules each module imports, in functions and under TYPE_CHECKING, too."""
    paths = {module_name(root, path): path for path in modules(root)}

    def named(module: str, names: list[str]) -> Iterator[str]:
        for name in names:
            yield f"{module}.{name}" if f"{module}.{name}" in paths else module

    graph: dict[str, set[str]] = {}
    for importer, path in paths.items():
        found: set[str] = set()
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.ImportFrom(module=str(module), names=names, level=0):
                        found.update(named(module, [alias.name for alias in names]))
                    case ast.Import(names=names):
                        found.update(alias.name for alias in names)
        else:
            for module, name in re.findall(r"^\s*from ([\w.]+) c?import \(?(\w+)", path.read_text(), re.MULTILINE):
                found.update(named(module, [name]))
        graph[importer] = found & paths.keys() - {importer}
    return graph


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reached = {module: _reachable(graph, module) for module in graph}
    groups = {
        frozenset({module} | {other for other in found if module in reached[other]})
        for module, found in reached.items()
    }
    return {group for group in groups if len(group) > 1}


def _reachable(graph: Mapping[str, set[str]], module: str) -> set[str]:
    found: set[str] = set()
    left = [module]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


# -- contracts ---------------------------------------------------------------------------------------------------------


def without_contract(root: Path) -> set[str]:
    """Return the packages of the map in ARCHITECTURE.md whose modules no exhaustive contract of layers orders."""
    declared = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    ordered = {
        container
        for contract in declared
        if contract["type"] == "layers" and contract.get("exhaustive")
        for container in contract.get("containers", ())
    }
    packages = {
        module_name(root, path)
        for top in TOPS
        for path in (root / top).glob("*/__init__.py")
        if not path.parent.is_symlink()
    }
    return packages - ordered


# -- names -------------------------------------------------------------------------------------------------------------

#: Words that classes, functions, parameters and variables are not named by: the field has terms for what they mean.
PRIVATE_WORDS = re.compile(
    r"look(?!_up|s_like|up)|told|bury|buried|anew|nobody|somebody|goes_on|by_heart"
    r"|(?<![a-z])(asked|(?<!not_)found|places|room)(?![a-z])"
)
#: Words that say nothing as the whole name of a value.
EMPTY_WORDS = frozenset({"one", "ones", "place", "it"})


def _definitions(root: Path) -> Iterator[tuple[Path, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in modules(root, kinds=(".py",)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield path.relative_to(root), node


def shared_names(root: Path) -> set[str]:
    """Return the names that more than one public class of a package has, such as `broker/log: Key`."""
    counts = Counter(
        f"{'/'.join(path.parts[:2])}: {node.name}"
        for path, node in _definitions(root)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name for name, count in counts.items() if count > 1}


def unclear_names(root: Path) -> set[str]:
    """Return the classes, functions, parameters and variables named by words in a sense of our own."""
    unclear: set[str] = set()
    for path in modules(root, kinds=(".py",)):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    is_value = False
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.MatchAs(name=str(name)):
                    is_value = True
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    is_value = True
                case _:
                    continue
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
            if PRIVATE_WORDS.search(words) or (is_value and words.strip("_") in EMPTY_WORDS):
                unclear.add(f"{path.relative_to(root)}: {name}")
    return unclear


# -- unused names ------------------------------------------------------------------------------------------------------

USERS = (*TOPS, "benchmarks", "deploy", "interop", "pyspark_warmlog", "tests")
WORD = re.compile(r"[A-Za-z_]\w*")


def unused_names(root: Path) -> set[str]:
    """Return public functions, classes, constants, methods and properties whose name stands nowhere else.

    Names count, not objects: what shares its name with something that is used is not reported. Methods that override
    one of another library are not ours to name.
    """
    words: Counter[str] = Counter()
    for top in USERS:
        for path in (root / top).rglob("*"):
            is_source = path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".toml"} and "fixtures" not in path.parts
            if path.name == "test_tidy.py" or not is_source:  # which names the exceptions
                continue
            if path.is_file() and not any(parent.is_symlink() for parent in path.parents):
                words.update(_words(path))
    words.update(WORD.findall((root / "pyproject.toml").read_text()))
    definitions: Counter[str] = Counter()
    places: dict[str, str] = {}
    for path in modules(root, kinds=(".py",)):
        for name in _public(ast.parse(path.read_text())):
            definitions[name] += 1
            places[name] = f"{path.relative_to(root)}: {name}"
    return {places[name] for name, count in definitions.items() if words[name] <= count}


@cache
def _words(path: Path) -> Counter[str]:
    return Counter(WORD.findall(path.read_text()))


def _public(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name):
                if not name.startswith("_"):
                    yield name
                yield from _public(node)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                if not name.startswith("_") and not _is_registered(node):
                    yield name
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                if not name.startswith("_") and isinstance(tree, ast.Module):
                    yield name


def _is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator hands the function to something that calls it by itself, such as a command."""
    kept = {"property", "cached_property", "staticmethod", "classmethod", "contextmanager", "override", "overload"}
    return any(ast.unparse(each).split("(")[0].split(".")[-1] not in kept for each in node.decorator_list)


# -- jobs of `make interop` ------------------------------------------------------------------------------------------

JOBS = re.compile(r"^INTEROP_JOBS := ((?:.*\\\n)*.*)$", re.MULTILINE)
RECIPE = re.compile(r"^(interop-\w+):.*\n(?:\t.*\n)*?\t\$\(INTEROP\) (.*) \$\(EMPTY_OK\)$", re.MULTILINE)
MARK = "pytest.mark.interop"


def missed_by_jobs(root: Path) -> dict[str, int]:
    """Return the modules with tests for `make interop` that not exactly one of its jobs collects, and how many do.

    A job collects the paths that its recipe in the Makefile names, except those that follow an `--ignore`.
    """
    paths = sorted([*(root / "tests").rglob("test_*.py"), *(root / "tests").rglob("conftest.py")])
    marked = [path for path in paths if MARK in path.read_text()]
    makefile = (root / "Makefile").read_text() if marked else ""
    run = {name for names in JOBS.findall(makefile) for name in names.split()}
    recipes = [words.split() for name, words in RECIPE.findall(makefile) if name in run]
    counts = {path: sum(_collects(words, path.relative_to(root)) for words in recipes) for path in marked}
    return {str(path.relative_to(root)): count for path, count in counts.items() if count != 1}


def _collects(words: list[str], path: Path) -> bool:
    pairs = list(pairwise(["", *words]))
    ignored = [folder for option, folder in pairs if option == "--ignore"]
    named = [folder for option, folder in pairs if "--ignore" not in (option, folder)]
    return any(map(path.is_relative_to, named)) and not any(map(path.is_relative_to, ignored))
