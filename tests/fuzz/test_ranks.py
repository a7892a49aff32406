"""A few killed ranks of each mode; ``ranks.py`` is the script for many."""

from __future__ import annotations

import pytest
from fuzz.ranks import kill_many


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "mini"])
def test_killed_ranks_end_with_the_parameters_of_a_run_that_nobody_kills(mode: str) -> None:
    done = kill_many(mode, ranks=2, kills=2, seed=5, epochs=8)
    assert done["kills"] == 2 and done["equal"] == done["runs"]
