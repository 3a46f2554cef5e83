"""The program ``everstep``: every command, put together.

A new noun is one module and one line here: ``app.add_typer(job.app, name="job")``; a new command of the stack's kind is
``app.command()(module.function)``.
"""

import typer

from everstep.cli import stack

app = typer.Typer(
    help="A control plane for training clusters, on this machine or on yours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for command in (stack.up, stack.down, stack.status, stack.env):
    app.command()(command)

if __name__ == "__main__":
    app()
