"""What each test checks, and by which rules of the text: the rows of docs/interop.md.

A test says its rules by `@rules`; its docstring says what it checks. `python -m interop` (see
__main__.py) writes the table.
"""

from dataclasses import dataclass

import pytest


def rules(text):
    """The rules that a test is about; those of a parameter stand before those of its function."""
    return pytest.mark.rules(text)


def departs(how, strict=True):
    """Marks a check in which the server still departs from the text; mending it asks for the mark to go."""
    return pytest.mark.xfail(reason=how, strict=strict)


@dataclass(frozen=True)
class Check:
    says: str
    rules: str
    departs: str | None = None


def check_of(item):
    """The row of a collected test; None for a test of these tests themselves."""
    mark = item.get_closest_marker("rules")
    if mark is None:
        return None
    case = f": {item.callspec.id}" if hasattr(item, "callspec") else ""
    departing = item.get_closest_marker("xfail")
    departs_by = departing.kwargs["reason"] if departing else None
    return Check(item.function.__doc__.strip().rstrip(".") + case, mark.args[0], departs_by)
