"""Catalogs by their URLs: what is missing, what messages show, and other jobs that create the same."""

import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, WaitingForLockException

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import catalog_of, copied, open_in, options_of
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.iceberg.catalog import create_namespace, open_catalog, without_password
from warmlog.pipeline.lakehouse.iceberg.errors import reason
from warmlog.pipeline.lakehouse.writing import LOCAL


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("postgresql://reader@127.0.0.1:1/lake", "psycopg", "'warmlog[postgresql]'"),
        ("thrift://127.0.0.1:1", "thrift", "'warmlog[hive]'"),
        ("postgresql+asyncpg://127.0.0.1:1/lake", "asyncpg", "asyncpg"),
    ],
)
def test_a_missing_driver_is_named_with_what_installs_it(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith((f"{module}.", "pyiceberg.catalog.hive"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(PipelineError) as raised:
        open_catalog(url, None, {})
    assert str(raised.value) == f"catalog {url}: the package {module} is missing: pip install {extra}"


def test_messages_show_no_password_and_are_a_line() -> None:
    with pytest.raises(PipelineError) as raised:
        open_catalog("postgresql://reader:s3/cret@127.0.0.1:1/lake", None, {})
    message = str(raised.value)
    assert message.startswith("catalog postgresql://reader:***@127.0.0.1:1/lake: (psycopg.OperationalError)")
    assert "Connection refused" in message
    assert "cret" not in message
    assert "\n" not in message
    assert without_password("http://127.0.0.1:8181/a") == "http://127.0.0.1:8181/a"


def test_tables_that_another_job_creates_meanwhile_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = SqlCatalog.create_tables

    def create_after_another(catalog: Any) -> None:
        create(catalog)
        with catalog.engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE iceberg_tables (x INT)"))

    monkeypatch.setattr(SqlCatalog, "create_tables", create_after_another)
    with open_catalog(f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse", {}) as catalog:
        assert catalog.list_namespaces() == []


def test_a_namespace_that_another_job_creates_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_catalog(f"sqlite:///{tmp_path}/catalog.db", None, {}) as catalog:
        catalog.create_namespace("db")
        with monkeypatch.context() as patch:
            answers = iter([False, True])
            patch.setattr(catalog, "namespace_exists", lambda _: next(answers))
            create_namespace(catalog, "db")
        assert catalog.list_namespaces() == [("db",)]


def test_directories_are_local_as_hive_writes_them(writer: DirectoryWriter, tmp_path: Path) -> None:
    where = catalog_of(tmp_path)
    with open_catalog(where["catalog"], f"file:{tmp_path}/warehouse", {}) as catalog:
        catalog.create_namespace("db")
        schema = open_in(tmp_path / "model", "iceberg").schema()
        catalog.create_table("db.orders", schema)
    table = open_in(tmp_path, "iceberg")
    copied(table, options_of(writer))
    assert all(file.path.startswith(f"file:{tmp_path}/warehouse/") for file in table.files())
    for file in table.files():
        with table.store().open(file.path) as content:
            assert content.read(4) == b"PAR1"
    assert not Path("file:").exists()
    assert LOCAL.sub("", "file:///lake") == LOCAL.sub("", "file:/lake") == "/lake"
    assert len(table.handle.scan().to_arrow()) == 90


def test_a_lock_that_is_not_had_is_explained() -> None:
    error = CommitFailedException("Failed to acquire lock for ('db', 'orders'), state: 2")
    assert reason(error) == str(error)
    error.__cause__ = WaitingForLockException()
    assert "metastore.txn.timeout" in reason(error)
