"""The names of options of object stores, which deltalake takes. It ignores a name that it does not know.

Names of a store are accepted in any case, with or without their prefix if listed so; names of the HTTP client have the
prefix of any store, too. Names of deltalake's own settings are in lower case, and those of its S3 log in either.

Source: `AmazonS3ConfigKey`, `GoogleConfigKey`, `AzureConfigKey`, `ClientConfigKey` of object_store 0.14; `RetryConfig`,
`RuntimeConfig`, `LimitConfig`, `CertificateConfig` and `constants` of deltalake 1.6.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from warmlog.pipeline.errors import PipelineError

CLIENT = [
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "disable_system_certificates",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_max_frame_size",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "timeout",
    "user_agent",
]
SETTINGS = [
    "max_retries",
    "retry_timeout",
    "init_backoff",
    "backoff_config.init_backoff",
    "backoff.init_backoff",
    "max_backoff",
    "backoff_config.max_backoff",
    "backoff.max_backoff",
    "base",
    "backoff_config.base",
    "backoff.base",
    "multi_threaded",
    "worker_threads",
    "thread_name",
    "enable_io",
    "enable_time",
    "max_concurrency",
    "concurrency_limit",
    "certificate_path",
]
S3 = [
    "access_key_id",
    "allow_http",
    "bucket",
    "bucket_name",
    "checksum_algorithm",
    "conditional_put",
    "container_authorization_token_file",
    "container_credentials_full_uri",
    "container_credentials_relative_uri",
    "copy_if_not_exists",
    "default_region",
    "disable_bulk_delete",
    "disable_tagging",
    "endpoint",
    "endpoint_url",
    "endpoint_url_sts",
    "imdsv1_fallback",
    "metadata_endpoint",
    "region",
    "request_payer",
    "role_arn",
    "role_session_name",
    "s3_express",
    "secret_access_key",
    "server_side_encryption",
    "session_token",
    "skip_signature",
    "sse_bucket_key_enabled",
    "sse_customer_key_base64",
    "sse_kms_key_id",
    "token",
    "unsigned_payload",
    "virtual_hosted_style_request",
    "web_identity_token_file",
]
S3_LOG = [
    "aws_access_key_id_dynamodb",
    "aws_ec2_metadata_disabled",
    "aws_ec2_metadata_timeout",
    "aws_endpoint_url_dynamodb",
    "aws_endpoint_url_s3",
    "aws_force_credential_load",
    "aws_iam_role_arn",
    "aws_iam_role_session_name",
    "aws_profile",
    "aws_region_dynamodb",
    "aws_s3_addressing_style",
    "aws_s3_allow_unsafe_rename",
    "aws_s3_assume_role_arn",
    "aws_s3_get_internal_server_error_retries",
    "aws_s3_locking_provider",
    "aws_s3_pool_idle_timeout_seconds",
    "aws_s3_role_session_name",
    "aws_secret_access_key_dynamodb",
    "aws_session_token_dynamodb",
    "aws_sts_pool_idle_timeout_seconds",
    "delta_dynamo_billing_mode",
    "delta_dynamo_max_elapsed_request_time",
    "delta_dynamo_table_name",
]
GOOGLE = [
    "application_credentials",
    "base_url",
    "bearer_token",
    "bucket",
    "bucket_name",
    "service_account",
    "service_account_key",
    "service_account_path",
    "skip_signature",
]
AZURE = [
    "access_key",
    "account_key",
    "account_name",
    "authority_host",
    "authority_id",
    "bearer_token",
    "client_id",
    "client_secret",
    "container_name",
    "credential_type",
    "disable_tagging",
    "encryption_key",
    "endpoint",
    "fabric_cluster_identifier",
    "fabric_session_token",
    "fabric_token_service_url",
    "fabric_workload_host",
    "federated_token_file",
    "identity_endpoint",
    "master_key",
    "msi_endpoint",
    "msi_resource_id",
    "object_id",
    "sas_key",
    "sas_token",
    "skip_signature",
    "tenant_id",
    "token",
    "use_azure_cli",
    "use_emulator",
    "use_fabric_endpoint",
]
AZURE_PREFIXED = [
    "azure_authority_host",
    "azure_authority_id",
    "azure_client_id",
    "azure_client_secret",
    "azure_container_name",
    "azure_credential_type",
    "azure_disable_tagging",
    "azure_endpoint",
    "azure_fabric_cluster_identifier",
    "azure_fabric_session_token",
    "azure_fabric_token_service_url",
    "azure_fabric_workload_host",
    "azure_federated_token_file",
    "azure_identity_endpoint",
    "azure_msi_endpoint",
    "azure_msi_resource_id",
    "azure_object_id",
    "azure_skip_signature",
    "azure_storage_access_key",
    "azure_storage_account_key",
    "azure_storage_account_name",
    "azure_storage_authority_host",
    "azure_storage_authority_id",
    "azure_storage_client_id",
    "azure_storage_client_secret",
    "azure_storage_encryption_key",
    "azure_storage_endpoint",
    "azure_storage_master_key",
    "azure_storage_sas_key",
    "azure_storage_sas_token",
    "azure_storage_tenant_id",
    "azure_storage_token",
    "azure_storage_use_emulator",
    "azure_tenant_id",
    "azure_use_azure_cli",
    "azure_use_fabric_endpoint",
]


def _with(prefix: str, names: Iterable[str]) -> set[str]:
    return {each for name in names for each in (name, f"{prefix}{name}")}


OF_S3 = _with("aws_", [*S3, *CLIENT]).union(S3_LOG)
OF_GOOGLE = _with("google_", [*GOOGLE, *CLIENT])
OF_AZURE = _with("azure_", CLIENT).union(AZURE, AZURE_PREFIXED)
NAMES: Mapping[str, set[str]] = {
    **dict.fromkeys(("s3", "s3a", "lakefs"), OF_S3),
    "gs": OF_GOOGLE,
    **dict.fromkeys(("az", "adl", "azure", "abfs", "abfss"), OF_AZURE),
}


def check_storage(uri: str, names: Iterable[str]) -> None:
    """Raise PipelineError for an option that deltalake would ignore. Other stores, such as HDFS, are not checked."""
    scheme = uri.partition("://")[0].lower()
    known = NAMES.get(scheme)
    for name in names:
        if known is None or name.lower() in known or name in SETTINGS:
            continue
        close = get_close_matches(name.lower(), sorted({*known, *SETTINGS}), n=1)
        meant = "".join(close).upper() if name.isupper() and close[:1] and close[0] not in SETTINGS else "".join(close)
        hint = f"did you mean {meant}?" if close else "see https://delta-io.github.io/delta-rs/api/storage/"
        raise PipelineError(f"storage option {name}: Delta tables at {scheme}:// have no such option; {hint}")
