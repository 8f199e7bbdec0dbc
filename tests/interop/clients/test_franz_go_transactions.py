"""The transaction test of franz-go itself: chains of groups copy topics in transactions, members leaving on the way.

Its producers also begin transactions before the former ones have ended (`EndBeginTxnUnsafe`).
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

import interop.kafka_node
from interop.kafka_node import MissingToolError
from tests.interop.clients.programs import GO_DIRECTORY, program
from tests.requires import lacks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROJECT = Path(interop.kafka_node.__file__).parent / "go"
RECORDS = 50_000
LIMIT_S = 90
#: With "848" of the consumer protocol.
CHAINS = {"range", "cooperative-sticky", "cooperative-sticky/static", "range/848", "sticky/848", "sticky/848/static"}


@pytest.fixture(scope="session")
def suite() -> Path:
    """The built tests of the client, of the version that `go.mod` names."""
    try:
        go = program("go", "golang-go", also=GO_DIRECTORY)
    except MissingToolError as error:
        lacks(error)
    built = PROJECT / "target" / "kgo.test"
    built.parent.mkdir(exist_ok=True)
    subprocess.run([go, "test", "-c", "-o", built, "github.com/twmb/franz-go/pkg/kgo"], cwd=PROJECT, check=True)
    return built


def test_the_clients_own_transactions_test_passes(bootstrap: str, suite: Path) -> None:
    settings = {
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_TEST_UNSAFE": "1",
        "KGO_LOG_LEVEL": "none",
    }
    command = [suite, "-test.run", "^TestTxnEtl$", "-test.v", f"-test.timeout={LIMIT_S}s"]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    passed = set(re.findall(r"--- PASS: TestTxnEtl/(\S+)", done.stdout))
    assert passed >= CHAINS, done.stdout[-4000:]
