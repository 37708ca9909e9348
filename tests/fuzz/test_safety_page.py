"""The page on files from strangers tells the limits that the code has."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "safety.md"
LIMITS = re.findall(r"^\| .* \| ([\d,]+) \| `([\w.]+)` \|$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("told", "constant"), LIMITS, ids=[name for _, name in LIMITS])
def test_a_limit_is_what_the_page_says(told, constant):
    module, _, name = constant.rpartition(".")
    assert f"{getattr(importlib.import_module(module), name):,}" == told


def test_no_limit_is_left_out():
    modules = {constant.rpartition(".")[0] for _, constant in LIMITS}
    named = {constant for _, constant in LIMITS}
    for module in modules:
        limits = [name for name in vars(importlib.import_module(module)) if name.isupper()]
        own = (Path(importlib.import_module(module).__file__)).read_text()
        for name in limits:
            if name.startswith(("MAX_", "ALWAYS_")) and re.search(
                rf"^{name}\b.* = ", own, re.M
            ):
                assert f"{module}.{name}" in named
