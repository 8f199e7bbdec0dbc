"""Options of object stores: deltalake ignores those that it does not know, so they are errors."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from warmlog.cli.pipeline.table import table as table_command
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.delta.storage import check_storage

S3 = [
    "AWS_REGION",
    "aws_region",
    "region",
    "AWS_ENDPOINT_URL",
    "endpoint",
    "AWS_ALLOW_HTTP",
    "allow_http",
    "aws_timeout",
    "TIMEOUT",
    "AWS_S3_ALLOW_UNSAFE_RENAME",
    "aws_s3_allow_unsafe_rename",
    "AWS_S3_LOCKING_PROVIDER",
    "DELTA_DYNAMO_TABLE_NAME",
    "AWS_ENDPOINT_URL_S3",
    "aws_conditional_put",
    "conditional_put",
    "copy_if_not_exists",
    "AWS_SESSION_TOKEN",
    "aws_token",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "aws_server_side_encryption",
    "aws_sse_kms_key_id",
    "AWS_IAM_ROLE_ARN",
    "skip_signature",
    "max_retries",
    "retry_timeout",
    "backoff_config.init_backoff",
    "concurrency_limit",
    "worker_threads",
    "certificate_path",
]
GOOGLE = [
    "GOOGLE_SERVICE_ACCOUNT",
    "service_account",
    "google_service_account_path",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "google_bucket",
    "google_bearer_token",
    "google_base_url",
    "google_skip_signature",
    "proxy_url",
    "google_connect_timeout",
    "max_retries",
]
AZURE = [
    "AZURE_STORAGE_ACCOUNT_NAME",
    "account_name",
    "azure_storage_account_key",
    "azure_storage_sas_token",
    "sas_key",
    "AZURE_CLIENT_ID",
    "azure_storage_client_secret",
    "azure_tenant_id",
    "azure_authority_id",
    "azure_use_azure_cli",
    "use_emulator",
    "azure_msi_endpoint",
    "azure_storage_use_emulator",
    "azure_allow_http",
    "user_agent",
    "azure_credential_type",
]


@pytest.mark.parametrize(
    ("schemes", "names"),
    [(("s3", "s3a", "S3"), S3), (("gs",), GOOGLE), (("az", "abfs", "abfss", "azure", "adl"), AZURE)],
    ids=["s3", "google", "azure"],
)
def test_what_the_library_takes_is_accepted(schemes: tuple[str, ...], names: list[str]) -> None:
    for scheme in schemes:
        check_storage(f"{scheme}://bucket/table", names)


@pytest.mark.parametrize(
    ("uri", "name", "hint"),
    [
        ("s3://bucket/table", "AWS_REGOIN", "did you mean AWS_REGION?"),
        ("s3://bucket/table", "aws_endpoit_url", "did you mean aws_endpoint_url?"),
        ("s3://bucket/table", "MAX_RETRIES", "did you mean max_retries?"),
        ("gs://bucket/table", "google_servce_account", "did you mean google_service_account?"),
        ("abfss://container@account/table", "azure_storage_acount_name", "did you mean azure_storage_account_name?"),
        ("gs://bucket/table", "AWS_S3_LOCKING_PROVIDER", "see https://delta-io.github.io/delta-rs/api/storage/"),
        ("s3://bucket/table", "xyz", "see https://delta-io.github.io/delta-rs/api/storage/"),
    ],
)
def test_a_name_that_would_be_ignored_is_an_error(uri: str, name: str, hint: str) -> None:
    scheme = uri.partition(":")[0]
    with pytest.raises(PipelineError) as caught:
        check_storage(uri, ["max_retries", name])
    assert str(caught.value) == f"storage option {name}: Delta tables at {scheme}:// have no such option; {hint}"


def test_stores_with_names_of_their_own_are_not_checked() -> None:
    check_storage("hdfs://namenode/table", ["dfs.client.use.datanode.hostname"])


def test_the_command_ends_before_it_reaches_the_store(tmp_path: Path) -> None:
    arguments = ["orders", "s3://lake/orders", "--path", str(tmp_path), "--until-end"]
    result = CliRunner().invoke(table_command, [*arguments, "--storage", "AWS_ENDPIONT_URL=http://secret@127.0.0.1:1"])
    (line,) = result.output.splitlines()
    assert (result.exit_code, "did you mean AWS_ENDPOINT_URL?" in line, "secret" in line) == (1, True, False)
