"""Cases that went wrong in other tools: each has one right outcome here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ablate.cli import app
from ablate.errors import UserError
from ablate.study.load import load_study, override_with
from ablate.study.plan import make_plan
from ablate.study.plan_test import SMALL

TOKENS = [
    *("on", "off", "yes", "No", "true", "False", "none", "null", "~", "None", "nan", ".inf"),
    *("1e-3", "1E5", "1.", ".5", "010", "0o17", "0x1F", "0b1", "12:30", "1_000", "-0", "+3"),
    *(
        "'off'",
        '"010"',
        "a b",
        "a=b",
        "a@b",
        "x.y",
        "λ",
        "2026-01-01",
        "1.0",
        "1",
        "<<",
        "=",
        "é#f",
    ),
]


def outcome(action: Any) -> object:
    """What comes out: levels, or a refusal without its place in the text."""
    try:
        return action()
    except UserError as error:
        return str(error).partition("two readings")[1] or "refused"


def from_file(folder: Path, levels: str) -> object:
    file = folder / "s.yaml"
    file.write_text(f"task: mqar\ndesign: {{factors: {{task_args.gate: {levels}}}}}\n")
    return load_study(file)[0].design.factors["task_args.gate"].levels


def from_command_line(folder: Path, levels: str) -> object:
    file = folder / "s.yaml"
    file.write_text("task: mqar\n")
    study, _ = load_study(file, [f"design.factors.task_args.gate={levels}"])
    return study.design.factors["task_args.gate"].levels


def test_gate_on_off_none_null_is_one_refusal_everywhere(tmp_path: Path) -> None:
    for read in (from_file, from_command_line):
        with pytest.raises(UserError, match="on has two readings; write true or 'on'"):
            read(tmp_path, "[on, off, none, null]")
        assert read(tmp_path, "['on', 'off', none, null]") == ["on", "off", "none", None]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=3))
@example(["1e-3", "none", "null"])
@example(["nan"])
def test_file_and_command_line_read_every_scalar_alike(tmp_path: Path, tokens: list[str]) -> None:
    levels = f"[{', '.join(tokens)}]"
    read = [
        outcome(lambda: from_file(tmp_path, levels)),
        outcome(lambda: from_command_line(tmp_path, levels)),
    ]
    assert repr(read[0]) == repr(read[1])


def small(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps({**SMALL, **changes}))
    return file


def test_labels_keep_every_letter(tmp_path: Path) -> None:
    names = ["a@b", "x[0]", "p=q", "two words", "v1.5", "λ", "50%_&#"]
    text = "the same words again and again, " * 400
    for name in names:
        (tmp_path / f"{name}.txt").write_text(f"{name} {text}", encoding="utf-8")
    corpora = [str(tmp_path / f"{name}.txt") for name in names]
    file = small(
        tmp_path,
        task="language",
        task_args={"context": 16, "tokens": 64, "batch": 2},
        design={"factors": {"task_args.corpus": corpora}},
    )
    made = make_plan(file, ["seeds=2"])
    assert [cell.axes["task_args.corpus"] for cell in made.cells] == corpora
    assert [cell.label for cell in made.cells[1:]] == [f"task_args.corpus={c}" for c in corpora[1:]]
    assert len({cell.id for cell in made.cells}) == len(names)
    shown = json.loads(json.dumps(made.to_json()))
    assert shown["cells"][5]["axes"]["task_args.corpus"].endswith("λ.txt")


def test_a_grid_that_grows_or_shrinks_keeps_the_cells_it_had(tmp_path: Path) -> None:
    def cells(levels: list[int]) -> set[str]:
        design = {"kind": "full", "factors": {"window": levels, "retention": ["scalar", "none"]}}
        return {cell.id for cell in make_plan(small(tmp_path, design=design), ["seeds=2"]).cells}

    two, three = cells([2, 1]), cells([2, 1, 3])
    assert two < three
    assert len(three - two) == 2
    assert cells([2]) < two


def test_a_plan_of_what_a_plan_shows_is_the_same_plan(tmp_path: Path) -> None:
    first = make_plan(small(tmp_path, design={"factors": {"window": [2, 1]}}))
    for cell in first.cells:
        model = cell.config["model"]
        settings = {
            f"{axis}.{option}": value
            for axis, component in model.items()
            if isinstance(component, dict)
            for option, value in component.items()
            if not option.startswith("_")
        }
        again = small(
            tmp_path,
            model_args={**settings, "chunk": model["chunk"]},
            task_args=cell.config["task"]["args"],
            train=cell.config["train"],
        )
        assert make_plan(again).baseline == cell.id


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"s": "defaults: [t]\n", "t": "defaults: [s]\n"},
            "s.yaml includes t.yaml includes s.yaml",
        ),
        ({"s": "defaults: [t]\n", "t": "task: a\ntask: b\n"}, "s.yaml includes t.yaml, line 2"),
        ({"s": "defaults: [t]\n", "t": "a:\n\tb: 1\n"}, "s.yaml includes t.yaml, line 2, column 1"),
        ({"s": "defaults: [gone]\n"}, "s.yaml includes gone: no such file"),
        ({"s": "task: ${nowhere}\n"}, "Interpolation key 'nowhere' not found"),
        ({"s": "task: a\ntask: b\n"}, "key 'task' appears twice"),
    ],
)
def test_a_broken_file_exits_2_with_the_way_to_it(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "s.yaml")])
    assert result.exit_code == 2
    assert message in result.output


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from("abcde"), st.integers(), min_size=1), st.randoms())
def test_the_order_of_overrides_of_different_keys_does_not_matter(
    values: dict[str, int], random: Any
) -> None:
    texts = [f"task_args.{key}={value}" for key, value in values.items()]
    start = {"task": "mqar"}
    first: dict[str, Any] = start
    for text in texts:
        first = override_with(first, text)
    random.shuffle(texts)
    second: dict[str, Any] = start
    for text in texts:
        second = override_with(second, text)
    assert first == second
    assert yaml.safe_load(yaml.safe_dump(first)) == first


DOCS = Path(__file__).resolve().parents[2] / "docs" / "design_language.md"


@pytest.mark.skipif(not DOCS.is_file(), reason="only the repository has docs/")
def test_the_example_of_the_docs_plans(tmp_path: Path) -> None:
    text = DOCS.read_text().split("```yaml\n")[1].split("```")[0]
    (tmp_path / "docs.yaml").write_text(text)
    made = make_plan(tmp_path / "docs.yaml")
    assert len(made.cells) == 1 + 1 + 2 + 1 + 1
    assert all(cell.matched for cell in made.cells[1:])
    shown = made.to_json()
    table = DOCS.read_text().partition("## JSON")[2]
    for key in (*shown, *shown["cells"][0], *shown["cost"], *shown["power"]):
        assert f"`{key}`" in table, f"{key} is not described"
