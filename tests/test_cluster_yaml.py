"""cluster.yaml is what `ray up` takes: by Ray's own schema and checks, without a cloud."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "cluster.yaml").read_text()
CONFIG = yaml.safe_load(TEXT)
DOC = (ROOT / "docs" / "cluster.md").read_text()


def check(config: dict[str, Any]) -> None:
    """As `ray up` does, but for what a cloud must answer."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(copy.deepcopy(config)))


def test_ray_takes_it() -> None:
    check(CONFIG)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c.update(max_worker=3),
        lambda c: c.update(head_node_type="none"),
        lambda c: c["available_node_types"]["gpu"].update(mim_workers=1),
        lambda c: c["available_node_types"]["gpu"].update(min_workers=100),
        lambda c: c["available_node_types"]["gpu"].update(resources={"GPU": "one"}),
    ],
)
def test_the_checks_find_mistakes(spoil: Callable[[Any], None]) -> None:
    config = copy.deepcopy(CONFIG)
    spoil(config)
    with pytest.raises(Exception, match=r"max_worker|none|mim_workers|100|one"):
        check(config)


def test_nobody_is_let_in() -> None:
    [rule] = CONFIG["provider"]["security_group"]["IpPermissions"]
    assert (rule["FromPort"], rule["ToPort"]) == (22, 22)
    assert rule["IpRanges"] == [{"CidrIp": "<your address>/32"}]
    starts = [CONFIG["head_start_ray_commands"][1], CONFIG["worker_start_ray_commands"][1]]
    assert all(each.startswith("RAY_AUTH_MODE=token ") for each in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]


def test_all_machines_run_this_release() -> None:
    assert any(
        f"'radixray[serve]=={version('radixray')}'" in each for each in CONFIG["setup_commands"]
    )


def test_the_page_names_what_is_to_be_filled_in() -> None:
    for blank in set(re.findall(r"<([^>]+)>", TEXT)) - {"..."}:
        assert blank.split(",")[0] in DOC, blank


def test_commands_of_the_page_are_known() -> None:
    from typer.main import get_command

    from radixray.cli import app

    command = get_command(app)
    for line in re.findall(r"^radixray .*$", DOC, re.MULTILINE):
        words = line.partition("#")[0].split()
        sub = command.commands[words[1]]  # type: ignore[attr-defined]
        with sub.make_context(words[1], words[2:]):
            pass
