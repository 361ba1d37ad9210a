"""Converting the embedded model in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = "from radixray.models.resolve import resolve_model as r; r('smollm2-135m')"


def start_conversion(home: Path) -> subprocess.Popen[str]:
    """A process that resolves the embedded model in the given home folder."""
    return subprocess.Popen(
        [sys.executable, "-c", CODE],
        env=os.environ | {"RADIXRAY_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
