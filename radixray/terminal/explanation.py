"""An `Explanation` for people."""

from __future__ import annotations

from datetime import datetime

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from radixray.explanation import Explanation


def print_explanation(found: Explanation, out: Console, *, as_json: bool) -> None:
    """Prints it: sentences, then the model actors among which the scheduler chose."""
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    placement, hit = found.placement, found.hit
    began = placement.at if placement is not None else hit.at if hit is not None else None
    when = "" if began is None else f", {datetime.fromtimestamp(began):%Y-%m-%d %H:%M:%S}"
    out.print(f"[bold]{escape(found.request_id)}[/]{when}")
    for sentence in found.why:
        out.print(escape(sentence))
    if placement is None:
        return
    table = Table("model actor", "cached", "requests", "to compute", "", box=None)
    for each in placement.candidates:
        note = "chosen" if each.actor == placement.actor else "" if each.up else "down"
        cells = (each.actor, each.matched, each.requests, each.prefill_tokens, note)
        table.add_row(*(escape(str(cell)) for cell in cells))
    out.print(table)
    if placement.left_out:
        out.print(f"and {placement.left_out} more")
