import pytest
from click.testing import CliRunner

from warmlog.cli.root import root


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_calls_the_command(shell: str) -> None:
    result = CliRunner().invoke(root, ["completion", shell])
    assert result.exit_code == 0
    assert f"_WARMLOG_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (
            "warmlog ",
            {
                "serve",
                "topic",
                "partition",
                "records",
                "broker",
                "acl",
                "audit-log",
                "tour",
                "quota",
                "config",
                "transaction",
                "produce",
                "consume",
                "group",
                "share",
                "cluster",
                "user",
                "mirror",
                "log",
                "tls",
                "pipeline",
                "completion",
            },
        ),
        ("warmlog to", {"topic", "tour"}),
        ("warmlog log v", {"verify"}),
        ("warmlog log e", {"explain"}),
        ("warmlog log re", {"residency", "receipts", "repair"}),
        ("warmlog completion f", {"fish"}),
    ],
)
def test_completion_offers_matching_names(typed: str, offered: set[str]) -> None:
    variables = {"_WARMLOG_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    result = CliRunner().invoke(root, [], prog_name="warmlog", env=variables)
    assert {line.split(",")[1] for line in result.stdout.split()} == offered
