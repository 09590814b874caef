"""Runs the first Python example of a README with the installed package: `python first_example.py README.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import regard

code = re.search(r"```python\n(.*?)```", Path(sys.argv[1]).read_text("utf8"), re.DOTALL)
if code is None:
    sys.exit(f"{sys.argv[1]} has no Python example.")
if (
    Path(sys.argv[1]).resolve().parent in Path(regard.__file__).resolve().parents
    and "site-packages" not in regard.__file__
):
    sys.exit(f"{regard.__file__} is the checkout, not the installed package.")
exec(code[1], {})
