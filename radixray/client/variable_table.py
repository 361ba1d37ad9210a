"""The variables of one state, by name."""

from __future__ import annotations

from radixray.client.variables import Var


class Variables(dict[str, Var]):
    """Those of a state; of a branch, also those it was forked with."""

    def __init__(self) -> None:
        super().__init__()
        self._inherited: dict[str, Var] = {}
        self._branches: list[Variables] = []

    def __missing__(self, name: str) -> Var:
        known = ", ".join(self) or "none"
        forked = any(name in branch for branch in self._branches)
        hint = "; branches of a fork have it, and joining them brings it" if forked else ""
        raise KeyError(f"no variable {name!r}; there are: {known}{hint}")

    def of_branch(self) -> Variables:
        """Those that a branch begins with; raises as `Var.copy`."""
        branch = Variables()
        branch._inherited = {name: var.copy() for name, var in self.items()}
        branch |= branch._inherited
        self._branches.append(branch)
        return branch

    def own(self) -> dict[str, Var]:
        """Those set since the branch was forked off."""
        return {n: var for n, var in self.items() if var is not self._inherited.get(n)}

    def free_name(self) -> str:
        """For a generation without a name."""
        number = 0
        while (name := f"gen_{number}") in self:
            number += 1
        return name
