"""`radixray fsm explain`: a text, followed through a constraint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from radixray.errors import InvalidRequestError

if TYPE_CHECKING:
    from radixray.fsm.explain import Explanation

app = typer.Typer(help="Constrained decoding.", no_args_is_help=True)
# soft_wrap: one line stays one line in logs and pipes.
out = Console(soft_wrap=True, highlight=False)


@app.callback()
def _root() -> None:
    # Keeps typer from making a lone command the whole program.
    pass


@app.command()
def explain(
    text: Annotated[str, typer.Option(help="What to follow through the constraint.")] = "",
    regex: Annotated[str | None, typer.Option(help="Python `re` syntax, as by fullmatch.")] = None,
    schema: Annotated[Path | None, typer.Option(help="File with a JSON Schema.")] = None,
    ebnf: Annotated[Path | None, typer.Option(help="File with a GBNF grammar.")] = None,
    lark: Annotated[Path | None, typer.Option(help="File with a Lark grammar.")] = None,
    choices: Annotated[
        list[str] | None, typer.Option("--choices", "--choice", help="One of these; repeat it.")
    ] = None,
    whitespace: Annotated[
        str | None, typer.Option(help="With --schema: spaced, compact or flexible.")
    ] = None,
    start_after: Annotated[
        str | None, typer.Option(help="Text the constraint begins after.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Follow a text through a constraint: what could come, what is forced, what is refused."""
    import msgspec

    from radixray.constraint import Constraint
    from radixray.fsm.explain import explain as explain_text

    explanation = explain_text(
        Constraint(
            regex=regex,
            json_schema=_read(schema),
            ebnf=_read(ebnf),
            lark=_read(lark),
            choices=None if choices is None else tuple(choices),
            whitespace=whitespace,
            start_after=start_after,
        ),
        text,
    )
    if as_json:
        print(msgspec.json.encode(explanation).decode())
    else:
        _print_explanation(explanation)
    if explanation.verdict == "refused":
        raise typer.Exit(1)


def _print_explanation(explanation: Explanation) -> None:
    table = Table("byte", "text", "state", "allowed", "could be", "forced", box=None)
    for step in explanation.steps:
        cells = (step.at, step.text, step.state, step.allowed, step.could_be, step.forced)
        table.add_row(*(escape(str(cell)) for cell in cells))
    out.print(table)
    color = {"member": "green", "prefix": "yellow", "refused": "red"}[explanation.verdict]
    out.print(f"[bold {color}]{explanation.verdict}:[/] {escape(explanation.why)}")
    if explanation.could_be:
        out.print(f"could be: {escape(explanation.could_be)}")
    if explanation.forced:
        out.print(f"forced:   {escape(explanation.forced)}")


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error
