"""`core.backoff`: waits between tries."""

import time
from email.utils import formatdate

import pytest

from raypipe.core.backoff import Backoff, retry_after_s


def waits(backoff, after_s=0.0):
    found = []
    while (wait_s := backoff.next_s(after_s)) is not None:
        found.append(wait_s)
    return found


def test_waits_double_up_to_the_longest_and_there_is_one_fewer_than_tries():
    assert waits(Backoff(6, 0.5, 3.0, jitter=lambda: 0.5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert waits(Backoff(1, 0.5)) == []


def test_jitter_halves_a_wait_or_makes_it_half_as_long_again():
    assert waits(Backoff(2, 1.0, jitter=lambda: 0.0)) == [0.5]
    assert waits(Backoff(2, 1.0, jitter=lambda: 1.0)) == [1.5]
    drawn = {waits(Backoff(2, 1.0))[0] for _ in range(50)}
    assert len(drawn) > 1 and all(0.5 <= wait_s <= 1.5 for wait_s in drawn)


def test_a_server_that_asks_for_a_longer_wait_gets_it_up_to_the_longest():
    assert waits(Backoff(3, 1.0, 10.0, jitter=lambda: 0.5), after_s=7.0) == [7.0, 7.0]
    assert waits(Backoff(3, 1.0, 10.0, jitter=lambda: 0.5), after_s=3600.0) == [10.0, 10.0]


def test_a_try_that_brought_something_starts_the_count_again():
    backoff = Backoff(3, 1.0, jitter=lambda: 0.5)
    assert [backoff.next_s(), backoff.next_s()] == [1.0, 2.0]
    backoff.reset()
    assert waits(backoff) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("12", 12.0), ("0.5", 0.5), ("-3", 0.0), ("soon", 0.0), ("", 0.0), (formatdate(0), 0.0)],
)
def test_retry_after_is_a_number_or_a_date_and_else_nothing(value, seconds):
    assert retry_after_s({"retry-after": value}) == seconds


def test_a_date_ahead_is_the_time_until_then():
    assert 50 < retry_after_s({"retry-after": formatdate(time.time() + 60)}) <= 60
