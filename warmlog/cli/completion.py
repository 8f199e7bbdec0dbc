"""`warmlog completion`: the script that a shell sources to complete our commands and options.

Owns: nothing but the way to click's own scripts. Must not know: which commands there are.
"""

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print the script that completes `warmlog` in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes `warmlog` in a shell.

    \b
    bash:  eval "$(warmlog completion bash)"      in ~/.bashrc
    zsh:   eval "$(warmlog completion zsh)"       in ~/.zshrc
    fish:  warmlog completion fish > ~/.config/fish/completions/warmlog.fish
    """
    completer = get_completion_class(shell)
    assert completer is not None, "click knows the shells that Choice offers"
    click.echo(completer(context.find_root().command, {}, "warmlog", "_WARMLOG_COMPLETE").source())
