from __future__ import annotations

from pathlib import Path

import pytest

from ablate.errors import UserError
from ablate.study.load import find_study, load_study


def write(folder: Path, **files: str) -> Path:
    """Write files; give back the first's path."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{next(iter(files))}.yaml"


def test_a_small_file_gets_the_defaults(tmp_path: Path) -> None:
    study, file = load_study(write(tmp_path, small="model: atlas\ntask: language\n"))
    assert (study.name, study.model, file.name) == ("small", "atlas", "small.yaml")
    assert study.seeds == [0, 1, 2]
    assert study.design.kind == "one_factor"
    assert (study.measure.primary, study.measure.goal) == ("val/loss", "min")
    assert (study.resources.cpus, study.resources.gpus) == (1.0, 0.0)


def test_seeds_are_a_count_or_a_list(tmp_path: Path) -> None:
    file = write(tmp_path, s="task: language\nseeds: [7, 3]\n")
    assert load_study(file)[0].seeds == [7, 3]
    assert load_study(file, ["seeds=2"])[0].seeds == [0, 1]


def test_includes_are_laid_under(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        child="defaults: [parent, _self_]\nseeds: 5\ndesign: {factors: {window: [4, 1]}}\n",
        parent="task: language\nseeds: 3\ndesign: {kind: full, factors: {memory: [mlp, matrix]}}\n",
    )
    study, _ = load_study(file)
    assert study.seeds == [0, 1, 2, 3, 4]
    assert study.design.kind == "full"
    assert sorted(study.design.factors) == ["memory", "window"]


def test_a_shipped_study_can_be_included(tmp_path: Path) -> None:
    file = write(tmp_path, more="defaults: [/language/quickstart, _self_]\nseeds: 9\n")
    study, _ = load_study(file)
    assert (study.model, study.task, len(study.seeds)) == ("atlas", "language", 9)


@pytest.mark.parametrize(
    "given",
    [
        "  backbone: {dim: 64, layers: 2}\n",
        "  backbone.dim: 64\n  backbone.layers: 2\n",
        "  backbone: {dim: 64}\n  backbone.layers: 2\n",
    ],
)
def test_an_override_meets_both_spellings_of_a_name(given: str, tmp_path: Path) -> None:
    file = write(tmp_path, s=f"task: language\nmodel_args:\n{given}")

    def args(*overrides: str) -> dict[str, object]:
        return load_study(file, overrides)[0].model_args

    assert args("model_args.backbone.dim=32") == {"backbone.dim": 32, "backbone.layers": 2}
    assert args("~model_args.backbone.dim") == {"backbone.layers": 2}
    assert args("model_args.backbone={heads: 1}") == {"backbone.heads": 1}
    assert args("model_args.memory.expansion=1")["memory.expansion"] == 1
    with pytest.raises(UserError, match="'backbone.heads' is no key of model_args"):
        args("~model_args.backbone.heads")


def test_overrides_read_as_the_file_does(tmp_path: Path) -> None:
    file = write(tmp_path, s="task: language\ndesign: {factors: {memory: [mlp, matrix]}}\n")
    study, _ = load_study(
        file,
        [
            "train.lr=1e-3",
            "design.factors.feature_map.degree=[2, 1]",
            "~design.factors.memory",
            "model_args.backbone.dim=32",
            "question=a=b",
        ],
    )
    assert study.train == {"lr": 0.001}
    assert {key: spec.levels for key, spec in study.design.factors.items()} == {
        "feature_map.degree": [2, 1]
    }
    assert study.model_args == {"backbone.dim": 32}
    assert study.question == "a=b"


def test_on_is_a_key_though_it_is_no_value(tmp_path: Path) -> None:
    file = write(tmp_path, s="task: x\nmatch: {on: flops, by: width}\n")
    assert load_study(file)[0].match.on == "flops"
    plain = write(tmp_path, s="task: x\n")
    assert load_study(plain, ["match={on: flops}"])[0].match.on == "flops"
    assert load_study(plain, ["match.on=flops"])[0].match.on == "flops"


def test_nested_and_dotted_settings_are_the_same(tmp_path: Path) -> None:
    nested = write(tmp_path, n="task: t\nmodel_args: {backbone: {dim: 8}, chunk: 2}\n")
    dotted = write(tmp_path, d="task: t\nmodel_args: {backbone.dim: 8, chunk: 2}\n")
    assert load_study(nested)[0].model_args == load_study(dotted)[0].model_args


def test_names_are_looked_up_in_the_users_folders_first(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", quickstart="chunk: 1\n")  # a preset, no study
    assert find_study("quickstart", [tmp_path]).parent.name == "language"
    mine = write(tmp_path, quickstart="task: language\n")
    assert find_study("quickstart", [tmp_path]) == mine
    assert find_study("quickstart").parent.name == "language"


FILE_ERRORS = {
    "unknown key": (
        "task: x\nsede: 3\n",
        "s.yaml: sede: 'sede' is no key of a study. Did you mean 'seeds'? Valid: ",
    ),
    "unknown inner key": (
        "task: x\ndesign: {knd: full}\n",
        "s.yaml: design.knd: 'knd' is no key of design. Did you mean 'kind'? Valid: blocks, cap",
    ),
    "misspelt levels": (
        "task: x\ndesign: {factors: {window: {level: [1]}}}\n",
        "s.yaml: design.factors.window.level: 'level' is no key of design.factors.window. Did yo",
    ),
    "empty factor": (
        "task: x\ndesign: {factors: {window: []}}\n",
        "s.yaml: design.factors.window.levels is empty; give at least one.",
    ),
    "no list": (
        "task: x\ndesign: {factors: {window: 3}}\n",
        "s.yaml: design.factors.window is 3: must be a list of levels, {levels: [...], when: {",
    ),
    "nested level": (
        "task: x\ndesign: {factors: {window: [[1]]}}\n",
        "s.yaml: design.factors.window.levels.0 is [1]: a level must be text, a number, true, fal",
    ),
    "wrong type": ("task: 3\n", "s.yaml: task is 3: must be text."),
    "no seeds": ("task: x\nseeds: 0\n", "s.yaml: seeds is 0: must be a whole number >= 1, or a l"),
    "repeated seed": ("task: x\nseeds: [1, 1]\n", "s.yaml: seeds is [1, 1]: must not repeat a se"),
    "a billion seeds": (
        "task: x\nseeds: 1000000000\n",
        "s.yaml: seeds is 1000000000: must be at mo",
    ),
    "negative seed": ("task: x\nseeds: [0, -1]\n", "s.yaml: seeds.1 is -1: must be greater than "),
    "seed beyond SQLite": (
        "task: x\nseeds: [9223372036854775808]\n",
        "s.yaml: seeds.0 is 9223372036854775808: must be less than or equal to 92233720368547758",
    ),
    "null for text": ("task: x\nquestion:\n", "s.yaml: question is null: must be text."),
    "text for a section": (
        "task: x\ndesign: full\n",
        "s.yaml: design is 'full': must be a mapping of KEY: value.",
    ),
    "endless resource": (
        "task: x\nresources: {cpus: .inf}\n",
        "s.yaml: resources.cpus is inf: must be a finite number.",
    ),
    "negative resource": (
        "task: x\nresources: {cpus: -1}\n",
        "s.yaml: resources.cpus is -1: must be greater than 0.",
    ),
    "goal": (
        "task: x\nmeasure: {goal: lower}\n",
        "s.yaml: measure.goal is 'lower': must be 'min' or 'max'.",
    ),
    "missing task": ("model: atlas\n", "s.yaml: task is missing."),
    "other name": (
        "task: x\nname: t\n",
        "s.yaml: name is 't'; a study is named after its file: 's', or rename the file.",
    ),
    "duplicate key": ("task: x\ntask: y\n", "s.yaml, line 2, column 1: key 'task' appears twice."),
    "ambiguous": ("task: off\n", "s.yaml, line 1, column 7: off has two readings; write false or"),
    "interpolation": ("task: ${nope}\n", "s.yaml: Interpolation key 'nope' not found"),
    "missing include": ("defaults: [nope]\n", "s.yaml includes nope: no such file below "),
    "set twice": (
        "task: x\nmodel_args: {a.b: 1, a: {b: 2}}\n",
        "s.yaml: model_args: sets a.b twice, nested and with a dot",
    ),
}


@pytest.mark.parametrize("case", FILE_ERRORS)
def test_a_bad_file_is_told_by_file_and_key(case: str, tmp_path: Path) -> None:
    text, message = FILE_ERRORS[case]
    with pytest.raises(UserError) as caught:
        load_study(write(tmp_path, s=text))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sede=3", "command line: sede=3: 'sede' is no key of a study. Did you mean 'seeds'?"),
        ("design.fators.x=1", "command line: design.fators.x=1: 'fators' is no key of design. Did"),
        ("seeds", "command line: seeds: write key=value, or ~key to take a key out."),
        ("task.args=1", "command line: task.args=1: task is 'language', it has no keys."),
        ("seeds=off", "command line: seeds=off, line 1, column 1: off has two readings; write fal"),
        ("~train", "command line: ~train: 'train' is no key of this study. Valid: task."),
    ],
)
def test_a_bad_override_is_told(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_study(write(tmp_path, s="task: language\n"), [override])
    assert str(caught.value).startswith(message)


def test_includes_that_go_in_a_circle_show_the_way(tmp_path: Path) -> None:
    file = write(tmp_path, a="defaults: [b]\n", b="defaults: [c]\n", c="defaults: [a]\n")
    with pytest.raises(UserError) as caught:
        load_study(file)
    assert str(caught.value) == (
        "a.yaml includes b.yaml includes c.yaml includes a.yaml: a study cannot include itself."
    )


def test_an_error_in_an_included_file_shows_the_way(tmp_path: Path) -> None:
    file = write(tmp_path, a="defaults: [b]\n", b="task: x\ntask: y\n")
    with pytest.raises(UserError, match="a.yaml includes b.yaml, line 2, column 1: key 'task' app"):
        load_study(file)


def test_a_missing_study_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'quickstat' is no study. Did you mean 'quickstart'?"):
        find_study("quickstat")
    with pytest.raises(UserError, match="nowhere.yaml: no such file"):
        find_study(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match="a folder; a study is a file"):
        find_study(tmp_path)
    (tmp_path / "s.yml").write_text("task: language\n")
    with pytest.raises(UserError, match="s.yml: a study's file ends in .yaml; rename it."):
        find_study(tmp_path / "s.yml")
