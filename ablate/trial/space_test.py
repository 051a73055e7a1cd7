from __future__ import annotations

from pathlib import Path

import pytest

from ablate.errors import UserError
from ablate.trial.space import (
    AXES,
    CHOICE,
    GROUPS,
    Inactive,
    apply,
    check_component,
    choices,
    compose_model,
    load_choice,
    resolve,
    target_class,
)

PRESETS = {
    "atlas_plus": ("gated_mlp", "polynomial", "omega", "l2", "scalar", "muon", "quintic"),
    "ttt_linear": ("matrix_norm", "identity", "omega", "l2", "none", "gd", None),
    "ttt_mlp": ("mlp_norm", "identity", "omega", "l2", "none", "gd", None),
    "atlas": ("mlp", "polynomial", "omega", "l2", "scalar", "muon", "quintic"),
    "omeganet": ("mlp", "polynomial", "omega", "l2", "scalar", "gd", None),
    "titans_lmm": ("mlp", "identity", "omega", "l2", "scalar", "momentum", None),
    "deltanet": ("matrix", "identity", "omega", "l2", "none", "gd", None),
    "titans_gd": ("mlp", "identity", "omega", "l2", "scalar", "gd", None),
    "dla": ("mlp", "identity", "omega", "dot", "scalar", "gd", None),
    "moneta": ("mlp", "identity", "omega", "lp", "lq_printed", "gd", None),
    "yaad": ("mlp", "identity", "omega", "huber_switched", "scalar", "gd", None),
    "memora": ("mlp", "identity", "omega", "l2", "simplex", "gd", None),
    "gated_deltanet": ("matrix", "identity", "omega", "l2", "scalar", "gd_decayed", None),
    "mesa": ("matrix", "identity", "omega", "l2", "scalar", "least_squares", None),
    "longhorn": ("matrix", "identity", "omega", "l2", "none", "implicit_gd", None),
    "rwkv7": ("matrix", "identity", "omega", "l2", "channel", "gd", None),
    "swla": ("matrix", "identity", "omega", "dot", "scalar", "gd", None),
    "mamba2": ("matrix", "identity", "omega", "dot", "scalar", "gd", None),
    "linear_attention": ("matrix", "identity", "omega", "dot", "none", "gd", None),
    "retnet": ("matrix", "identity", "omega", "dot", "constant", "gd", None),
    "lightning": ("matrix", "identity", "omega", "dot", "constant", "gd", None),
    "gla": ("matrix", "identity", "omega", "dot", "channel", "gd", None),
    "transformer": ("attention", None, None, None, None, None, None),
    "swa": ("attention", None, None, None, None, None, None),
}
MATRIX = ("matrix", "identity", "omega")
PRESETS |= {
    "deltaproduct": (*MATRIX, "l2", "scalar", "multi_step_gd", None),
    "hgrn2": (*MATRIX, "dot", "tied", "gd_constant", None),
    "dfw": (*MATRIX, "dot", "channel_both", "gd_constant", None),
    "polysketch": ("matrix", "polysketch", "omega", "dot", "none", "gd_constant", None),
    "vector": ("vector", "identity", "omega", "dot", "channel_value", "gd", None),
    **{
        name: (memory, *[None] * 6)
        for name, memory in (("gsa", "slots"), ("lru", "lru"), ("lstm", "lstm"))
    },
}
EXPONENTIAL = ("exponential", "omega", "dot", "scalar", "gd", None)
PRESETS |= {
    "deep_transformer": ("mlp", *EXPONENTIAL),
    "swdt": ("mlp", *EXPONENTIAL),
    "swdt_span": ("mlp", *EXPONENTIAL),
    "dot": ("mlp", "exponential", "omega", "l2", "scalar", "gd", None),
    "dot_normalised": ("mlp", "exponential", "omega", "l2", "scalar", "gd", None),
    "dot_linear": ("matrix", "exponential", "omega", "l2", "scalar", "gd", None),
}
# Hybrids: the preset that they are otherwise, and how attention comes in.
HYBRIDS = {
    "titans_mac": ("titans_lmm", "mac"),
    "titans_mag": ("titans_lmm", "mag"),
    "titans_mal": ("titans_lmm", "mal"),
    "atlas_mac": ("atlas", "mac_bare"),
    "atlas_mag": ("atlas", "mag"),
    "atlas_mal": ("atlas", "mal"),
    "atlas_alternate": ("atlas", "alternate"),
    "moneta_h": ("moneta", "alternate"),
    "yaad_h": ("yaad", "alternate"),
    "memora_h": ("memora", "alternate"),
    "gated_deltanet_h1": ("gated_deltanet", "alternate"),
    "gated_deltanet_h2": ("gated_deltanet", "alternate"),
    "samba": ("mamba2", "alternate"),
}
PRESETS |= {name: PRESETS[base] for name, (base, _) in HYBRIDS.items()}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_made_of_the_papers_choices(name: str) -> None:
    model = compose_model(name)
    chosen = tuple(model[axis] and model[axis][CHOICE] for axis in AXES)
    assert chosen == PRESETS[name]
    assert model["name"] == name
    assert model["backbone"][CHOICE] == "llama"
    assert model["hybrid"][CHOICE] == HYBRIDS.get(name, (name, "lmm"))[1]


def test_every_preset_is_listed() -> None:
    assert choices("model") == sorted(PRESETS)


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_opens_with_a_comment_and_fits_its_class(group: str) -> None:
    import ablate.search_spaces

    assert choices(group)
    for name in choices(group):
        file = Path(ablate.search_spaces.__path__[0]) / group / f"{name}.yaml"
        assert file.read_text().startswith("# ")
        component = load_choice(group, name)
        cls = target_class(component["_target_"])
        assert cls.source
        assert isinstance(cls.axes, tuple)
        assert check_component(group, component)["_target_"] == component["_target_"]


def test_resolving_drops_what_is_inactive_and_spells_defaults_out() -> None:
    atlas = compose_model("atlas")
    resolved = resolve(atlas)
    assert resolved["newton_schulz"]["steps"] == 5
    assert resolved["window"]["length"] == 4
    assert resolve(resolved) == resolved
    assert resolve(apply(atlas, "newton_schulz.steps", 5)) == resolved
    assert resolve(apply(atlas, "inner_optimizer", "gd"))["newton_schulz"] is None
    attention = resolve(apply(atlas, "memory", "attention"))
    assert [axis for axis in AXES if attention[axis] is not None] == ["memory"]
    assert attention["chunk"] is None


def test_a_model_without_a_hybrid_is_its_memory_alone() -> None:
    atlas = compose_model("atlas")
    bare = {key: value for key, value in atlas.items() if key != "hybrid"}
    assert resolve(bare) == resolve(atlas) == resolve(apply(atlas, "hybrid", "lmm"))
    gated = resolve(apply(apply(atlas, "hybrid", "mag"), "hybrid", 8))
    assert gated["hybrid"]["window"] == 8
    assert gated["memory"] == resolve(atlas)["memory"]


def test_apply_sets_choices_principal_numbers_options_and_chunk() -> None:
    atlas = compose_model("atlas")
    assert apply(atlas, "window", 7)["window"]["length"] == 7
    assert apply(atlas, "window.length", 7) == apply(atlas, "window", 7)
    assert apply(atlas, "chunk", 3)["chunk"] == 3
    assert resolve(apply(atlas, "read", "before"))["read"] == "before"
    assert resolve(atlas)["read"] == "after"
    assert resolve(compose_model("transformer"))["read"] is None
    assert apply(atlas, "backbone.dim", 32)["backbone"]["dim"] == 32
    assert apply(atlas, "memory", "matrix")["memory"]["_target_"].endswith("MatrixMemory")
    assert atlas == compose_model("atlas"), "the model given is left as it was"


def test_naming_the_present_choice_keeps_its_options() -> None:
    model = apply(compose_model("atlas"), "memory.expansion", 1)
    assert apply(model, "memory", "mlp") == model
    assert "expansion" not in apply(apply(model, "memory", "matrix"), "memory", "mlp")["memory"]


def test_an_inactive_axis_or_option_is_told_apart_from_a_mistake() -> None:
    with pytest.raises(Inactive, match="newton_schulz is not active in titans_lmm"):
        apply(compose_model("titans_lmm"), "newton_schulz.steps", 1)
    with pytest.raises(Inactive, match="'degree' is no key of feature_map"):
        apply(compose_model("deltanet"), "feature_map.degree", 2)
    with pytest.raises(Inactive, match="chunk is not active in transformer"):
        apply(compose_model("transformer"), "chunk", 2)
    with pytest.raises(Inactive, match="read is not active in transformer"):
        apply(compose_model("transformer"), "read", "before")
    with pytest.raises(UserError, match="'befor' is no value of read. Did you mean 'before'?"):
        resolve(apply(compose_model("atlas"), "read", "befor"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("windo", 4, "s.yaml: 'windo' is no key of a model. Did you mean 'window'?"),
        ("memory", "mpl", "s.yaml: 'mpl' is no choice of memory. Did you mean 'mlp'? Valid: atten"),
        ("memory", None, "s.yaml: memory is None; it must be the name of a choice. Valid: attent"),
        ("retention", None, "s.yaml: retention is None; it must be the name of a choice. Write 'n"),
        ("bias", 2, "s.yaml: bias is 2, but L2 has no principal option that takes a number; write"),
    ],
)
def test_mistakes_name_the_place_and_what_is_valid(key: str, value: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        apply(compose_model("atlas"), key, value, where="s.yaml")
    assert str(caught.value).startswith(message)
    assert not isinstance(caught.value, Inactive)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(UserError, match="s.yaml: 'atlass' is no preset. Did you mean 'atlas'?"):
        compose_model("atlass", where="s.yaml")


def test_an_active_axis_needs_a_choice() -> None:
    model = apply(compose_model("deltanet"), "inner_optimizer", "muon")
    with pytest.raises(UserError) as caught:
        resolve(model)
    assert str(caught.value) == (
        "newton_schulz has no choice, but inner_optimizer muon needs one: set newton_schulz. "
        "Valid: cubic, polar, quintic."
    )


@pytest.mark.parametrize("target", ["os.getcwd", "torch.nn.Linear", "ablated.X", "getcwd"])
def test_targets_outside_ablate_are_refused(target: str) -> None:
    with pytest.raises(UserError, match=f"_target_ '{target}' is refused: it must lie below"):
        target_class(target)


def test_what_ablate_only_imports_is_no_target() -> None:
    with pytest.raises(UserError, match="'Tensor' is no class of ablate.components.memory"):
        target_class("ablate.components.memory.Tensor")
    with pytest.raises(UserError, match="No module named"):
        target_class("ablate.components.nowhere.Memory")


def test_an_allowed_package_is_admitted() -> None:
    assert target_class("torch.nn.Identity", allow=["torch"]).__name__ == "Identity"


def test_a_users_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "feature_map").mkdir()
    (tmp_path / "feature_map" / "polynomial.yaml").write_text(
        "_target_: ablate.components.feature_map.Polynomial\nconstant: false\n"
    )
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [atlas, _self_]\nchunk: 5\n")
    mine = compose_model("mine", [tmp_path])
    assert (mine["name"], mine["chunk"], mine["feature_map"]["constant"]) == ("mine", 5, False)
    assert compose_model("atlas", [tmp_path])["feature_map"]["constant"] is False
    assert "constant" not in compose_model("atlas")["feature_map"]
    assert "mine" in choices("model", [tmp_path])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "chunks: 5\n",
            "search_spaces/model/bad.yaml: 'chunks' is no key of a model. Did you mean",
        ),
        ("window: {length: 2}\n", "search_spaces/model/bad.yaml: window has no _target_; name a "),
        ("defaults: [/window: no]\n", "search_spaces/model/bad.yaml: "),
        ("defaults: [nowhere]\n", "search_spaces/model/bad.yaml: In 'model/bad': Could not load "),
        ("chunk: [1\n", "search_spaces/model/bad.yaml: "),
    ],
)
def test_a_bad_preset_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "bad.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        compose_model("bad", [tmp_path])
    assert str(caught.value).startswith(message)


def test_a_hybrid_may_have_the_memory_of_another_preset() -> None:
    model = resolve(compose_model("gated_deltanet_h2"))
    other, own = model["hybrid"]["memories"]
    assert own == "memory"
    mamba2 = resolve(compose_model("mamba2"))
    assert other == {key: mamba2[key] for key in other}
    assert other["chunk"] == 16
    assert model["chunk"] == 1
    assert resolve(model) == model
    with pytest.raises(UserError, match="'mamba3' is no preset. Did you mean 'mamba2'?"):
        resolve(apply(compose_model("gated_deltanet_h2"), "hybrid.memories", ["mamba3", "memory"]))
