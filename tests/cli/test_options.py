"""What the commands share of their options."""

import pytest

from specdash.cli.options import within
from specdash.core.errors import UsageError


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "--tokens 0: must be 1 to 1000000"),
        (1_234_567, "--tokens 1234567: must be 1 to 1000000"),
        (float("nan"), "--tokens nan: must be 1 to 1000000"),
        (0.5, "--tokens 0.5: must be 1 to 1000000"),
    ],
)
def test_a_number_out_of_range_is_told_with_its_option_and_all_digits_of_the_range(value: float, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        within("--tokens", value, None, 1, 1_000_000)
    assert str(raised.value) == said


def test_a_number_that_was_not_given_is_the_default() -> None:
    assert within("--tokens", None, 7, 1, 3) == 7
    assert within("--tokens", 2, 7, 1, 3) == 2
