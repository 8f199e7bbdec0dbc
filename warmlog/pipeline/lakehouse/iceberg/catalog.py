"""Open an Iceberg catalog."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.iceberg.errors import first_line

STORES = ("s3.", "gcs.", "adls.")
KINDS = {"http": "rest", "https": "rest", "thrift": "hive"}  # by the scheme of a URL; others are SQL
EXTRAS = {"psycopg": "postgresql", "thrift": "hive"}  # by the module that is missing
PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^@]*@")  # as SQLAlchemy reads a URL


def open_catalog(catalog: str, warehouse: str | None, properties: Mapping[str, str]) -> Any:
    """Open a catalog by its URL, or by its name in pyiceberg's configuration file.

    `http://…` is a REST catalog, `thrift://…` a Hive metastore, any other URL an SQL catalog. Raises PipelineError.
    """
    _check_properties(properties)
    given = dict(properties)
    if warehouse is not None:
        given["warehouse"] = warehouse
    scheme, separator, _ = catalog.partition("://")
    kind = KINDS.get(scheme, "sql") if separator else None
    name = catalog if kind is None else "default"
    if kind is not None:
        given = {"type": kind, "uri": catalog, **given}
    try:
        return _loaded(name, given)
    except Exception as error:
        raise PipelineError(f"catalog {without_password(catalog)}: {_reason(error)}") from error


def _loaded(name: str, properties: Mapping[str, str]) -> Any:
    """Load a catalog. An SQL catalog creates its tables, which fails if another job has just done so."""
    from pyiceberg.catalog import load_catalog
    from sqlalchemy.exc import DBAPIError

    try:
        return load_catalog(name, **properties)
    except DBAPIError:
        return load_catalog(name, **properties)


def create_namespace(catalog: Any, namespace: str) -> None:
    """Create a namespace unless it exists. A new database of Hive is in the warehouse. Raises pyiceberg's errors."""
    warehouse, is_hive = catalog.properties.get("warehouse"), catalog.properties.get("uri", "").startswith("thrift://")
    properties = {"location": f"{warehouse.rstrip('/')}/{namespace}.db"} if is_hive and warehouse else {}
    try:
        catalog.create_namespace_if_not_exists(namespace, properties)
    except Exception:
        if not catalog.namespace_exists(namespace):  # otherwise another job was faster
            raise


def without_password(catalog: str) -> str:
    """Return a URL as messages may show it."""
    return PASSWORD.sub(r"\1:***@", catalog)


def _reason(error: Exception) -> str:
    """Return why a catalog cannot be opened. For a module that is missing, say what to install."""
    cause = error.__cause__
    if not isinstance(cause, ModuleNotFoundError) or cause.name is None:
        return first_line(error)
    package = cause.name.partition(".")[0]
    extra = EXTRAS.get(package)
    missing = f"the package {package} is missing"
    return f"{missing}: pip install 'warmlog[{extra}]'" if extra else f"{missing}: pip install {package}"


def _check_properties(names: Iterable[str]) -> None:
    """Raise PipelineError for a property of an object store that pyiceberg would ignore. Others are the catalog's."""
    from pyiceberg import io

    constants = (value for value in vars(io).values() if isinstance(value, str))
    known = {value for value in constants if value.startswith(STORES)}
    for name in names:
        if name.startswith(STORES) and name not in known:
            close = get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {close[0]}?" if close else "see https://py.iceberg.apache.org/configuration/#fileio"
            raise PipelineError(f"storage option {name}: pyiceberg has no such property; {hint}")
