"""bench/records/printed.py: a percentile is that of `loquent bench`, which interpolates."""

import statistics

import pytest

from records.printed import percentile


def test_a_percentile_lies_between_the_two_values_around_it():
    assert percentile([40, 10, 30, 20], 0.5) == 25
    assert percentile(range(101), 0.99) == 99
    assert percentile([0, 100], 0.99) == pytest.approx(99)


@pytest.mark.parametrize("values", [[3, 1, 2], [4, 1, 3, 2], [7]])
def test_its_ends_are_the_least_and_the_most_and_its_middle_the_median(values):
    found = [percentile(values, share) for share in (0, 0.5, 1)]
    assert found == [min(values), statistics.median(values), max(values)]


def test_no_values_have_none():
    assert percentile([], 0.99) is None
