"""A new option is one line: its flag, help, check and place in the identity of a run follow from its field."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from graphweft._errors import ConfigError
from graphweft.commands.flags import flags_of, takes
from graphweft.train.option_table import check_options, identity_of, kept_by_resume, option, options_of, usually_drawn
from graphweft.train.spec import TrainSpec


@dataclass(frozen=True)
class More(TrainSpec):
    """With options that the library does not have."""

    sharpness: float = option(0.5, "X", "How sharp.", above=0.0, most=2.0, resume="given")
    hue: str = option("red", "", "Which colour.", choices=("red", "blue"), resume="kept")
    dots: int | None = option(None, "N", "mini: how many.", "some", least=1, most=9, drawn=True)
    glow: bool = option(False, "--glow/--no-glow", "Whether it glows.", resume="free")


def test_flags_and_help_follow_from_the_field() -> None:
    seen: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @takes(flags_of(More, "sharpness", "hue", "dots", "glow"))
    def show(**given: Any) -> None:
        seen.update(given)

    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for words in ("How sharp. Default: 0.5.", "red|blue", "Which colour. Default: red.", "how many. Default: some."):
        assert words in told
    assert CliRunner().invoke(app, ["--sharpness", "0.25", "--hue", "blue", "--glow"]).exit_code == 0
    assert seen == {"sharpness": "0.25", "hue": "blue", "dots": None, "glow": True}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"sharpness": 0.0}, r"^sharpness: expected a finite number > 0 and <= 2, got 0.0$"),
        ({"hue": "green"}, r"^hue: expected one of red, blue, got 'green'$"),
        ({"dots": 10}, r"^dots: expected an integer from 1 to 9, got 10$"),
        ({"dots": 2.0}, r"^dots: expected an integer from 1 to 9, got 2.0$"),
        ({"dots": 3}, r"^dots: expected mode mini as well, got mode 'full'$"),
    ],
)
def test_checks_follow_from_the_field(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        More(**given)
    check_options(More(**{"mode": "mini", "dots": 3, "sharpness": 2.0}))


def test_what_a_resumed_run_agrees_on_follows_from_the_field() -> None:
    usual, plain = More().identity(), TrainSpec().identity()
    assert usual == plain  # nothing that was not asked for
    assert More(sharpness=1.0).identity() == {**plain, "sharpness": 1.0}
    assert More(hue="blue", glow=True).identity() == plain
    assert kept_by_resume(More(hue="blue"))["hue"] == "blue" and "glow" not in kept_by_resume(More())
    assert identity_of(More(mode="mini"), "mini")["dots"] is None and "dots" not in usual
    assert usually_drawn(More)["dots"] is None


def test_every_field_is_an_option_with_a_help() -> None:
    table = options_of(TrainSpec)
    assert set(table) == {field.name for field in fields(TrainSpec)}
    flags = flags_of(TrainSpec)
    assert set(table) - set(flags) == {"progress"}  # train has --quiet
    assert all(said.help.endswith(".") for _, said in table.values())
