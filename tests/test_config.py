"""Settings: every check, every preset, and settings written as text."""

import math
from dataclasses import FrozenInstanceError, asdict, fields
from typing import get_args

import numpy as np
import pytest

from mpvae.config import (
    FEW_FEATURES,
    MAX_DRAWS_PER_STEP,
    MAX_EPOCHS,
    MAX_KERNEL_FEATURES,
    MAX_LATENT_DIM,
    MAX_LAYERS,
    MAX_MEMBERS,
    MAX_WIDTH,
    DataShape,
    Preset,
    Settings,
    parse_setting,
    setting_docs,
)
from mpvae.errors import ConfigError
from mpvae.presets import resolve

SHAPE = DataShape(n_rows=1500, n_features=103, n_labels=14)

MOST = {
    "kernel_features": MAX_KERNEL_FEATURES,
    "n_draws": MAX_DRAWS_PER_STEP,
    "max_epochs": MAX_EPOCHS,
    "n_members": MAX_MEMBERS,
}
WRONG = [
    *[
        (name, value)
        for name in (
            "latent_dim",
            "n_draws",
            "batch_size",
            "max_epochs",
            "n_members",
        )
        for value in (0, -1, 2.5, "3", None, True, math.nan)
    ],
    *[
        (name, value)
        for name in ("hidden", "hidden_labels", "hidden_decoder")
        for value in ((), (0,), (16, -1), (2.5,), "16", None, {"a": 1}, {1, 2}, True, [16, "x"])
    ],
    *[
        (name, value)
        for name in ("beta", "lambda_ce", "lambda_rank", "lambda_entropy", "weight_decay")
        for value in (-0.1, math.inf, math.nan, "1", None, True)
    ],
    *[
        (name, value)
        for name in ("rank_gain", "lr", "lr_factors")
        for value in (0, -1, math.inf, math.nan, "1", None)
    ],
    *[
        (name, value)
        for name in ("dropout", "dropout_inputs", "dropout_decoder", "validation_fraction")
        for value in (-0.1, 1, 1.5, math.nan, "half")
    ],
    *[("hide_labels", value) for value in (-0.1, 1.1, math.nan, "half", None, True)],
    *[("beta_power", value) for value in (0, 3, 1.0)],
    *[("probability_floor", value) for value in (-1e-9, 0.1, math.nan)],
    *[("lr_decay", value) for value in (0, 1.1, -1, math.nan)],
    *[("lr_decay_times", value) for value in (-1, 0.5)],
    *[("patience", value) for value in (0, -3, 1.5, "none")],
    *[("z_draws", value) for value in (-1, 4097, 0.5)],
    *[
        (name, value)
        for name in ("lr_schedule", "threshold", "monitor")
        for value in ("linear", None, 1, ["paper"], {"a": 1})
    ],
    *[
        (name, value)
        for name in ("n_factors", "kernel_features")
        for value in (-1, 2.5, "3", None, True, math.nan)
    ],
    *[
        (name, value)
        for name in ("shared_output", "label_branch", "quantiles")
        for value in (1, 0, None, "yes", {"x": 2})
    ],
    *[(name, MAX_LATENT_DIM + 1) for name in ("latent_dim", "n_factors")],
    *[(name, value) for name, most in MOST.items() for value in (most + 1, 10**30)],
    *[
        (name, value)
        for name in ("hidden", "hidden_labels", "hidden_decoder")
        for value in ((MAX_WIDTH + 1,), (8,) * (MAX_LAYERS + 1), (8,) * 10**5)
    ],
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_refused_with_its_name_and_value(name, value):
    with pytest.raises(ConfigError) as refused:
        resolve("default", {name: value}, SHAPE)
    text = str(refused.value)
    assert text.startswith(f"{name} must be ")
    assert "got " in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "given", [{"latent_dim": MAX_LATENT_DIM - 13}, {"n_factors": MAX_LATENT_DIM - 15}]
)
def test_latent_code_and_factors_are_bounded_together(given):
    with pytest.raises(ConfigError, match="latent_dim and n_factors must be <= 21201 together"):
        resolve("default", given, SHAPE)  # 14 factors, 16 dimensions unless given


def test_a_refusal_of_a_long_value_is_short():
    with pytest.raises(ConfigError) as refused:
        resolve("default", {"hidden": (8,) * 10**5}, SHAPE)
    assert len(str(refused.value)) < 300


def test_every_setting_has_a_wrong_value_among_these_tests():
    assert {name for name, _ in WRONG} == {f.name for f in fields(Settings)}


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("hidden", 16, (16,)),
        ("hidden", [16, 8], (16, 8)),
        ("latent_dim", np.int64(3), 3),
        ("latent_dim", MAX_LATENT_DIM - 14, MAX_LATENT_DIM - 14),
        ("lr", np.float32(0.5), 0.5),
        ("beta", 0, 0.0),
        ("shared_output", np.bool_(False), False),
        ("patience", None, None),
        ("dropout", 0, 0.0),
        ("validation_fraction", 0, 0.0),
        ("hide_labels", 0, 0.0),
        ("hide_labels", 1, 1.0),
        ("lr_decay", 1, 1.0),
        ("lr_decay_times", 0, 0),
        ("z_draws", 4096, 4096),
        ("monitor", "subset", "subset"),
        ("kernel_features", np.int32(0), 0),
        *[(name, most, most) for name, most in MOST.items()],
        ("hidden", [MAX_WIDTH], (MAX_WIDTH,)),
        ("hidden", [8] * MAX_LAYERS, (8,) * MAX_LAYERS),
    ],
)
def test_a_right_value_is_kept_as_a_plain_python_value(name, value, kept):
    found = getattr(resolve("default", {name: value}, SHAPE), name)
    assert found == kept
    assert type(found) is type(kept)


def test_auto_leaves_the_value_of_the_preset():
    given = dict.fromkeys(setting_docs(), "auto")
    for preset in get_args(Preset):
        assert resolve(preset, given, SHAPE) == resolve(preset, {}, SHAPE)


def test_an_unknown_preset_is_refused_by_name():
    known = ", ".join(get_args(Preset))
    for preset in ("fastest", None, ["paper"]):
        with pytest.raises(ConfigError, match=f"preset must be one of {known}, got "):
            resolve(preset, {}, SHAPE)


@pytest.mark.parametrize(
    "shape",
    [SHAPE, DataShape(1500, 8, 14), DataShape(5000, 1836, 159, sparse=True)],
    ids=["table", "few features", "texts"],
)
def test_fast_and_best_are_the_default_with_fewer_or_more_networks(shape):
    default, fast, best = (resolve(name, {}, shape) for name in ("default", "fast", "best"))
    assert (fast.n_members, default.n_members, best.n_members) == (2, 5, 15)
    columns = [settings.kernel_features for settings in (fast, default, best)]
    assert columns == ([200, 500, 1000] if shape is SHAPE else [0, 0, 0])
    same = {"n_members", "kernel_features", "max_epochs", "patience"}
    widths = {"hidden", "hidden_labels", "hidden_decoder"}
    for other, may_change in ((fast, same | widths), (best, same)):
        changed = {n for n, v in asdict(other).items() if v != getattr(default, n)}
        assert changed <= may_change
    for name in widths:
        assert tuple(2 * w for w in getattr(fast, name)) == getattr(default, name)
    assert best.max_epochs == default.max_epochs
    # A quarter of the steps, but never fewer than 20 passes.
    quarter = math.ceil(default.max_epochs / 4)
    assert max(20, quarter - 1) <= fast.max_epochs <= max(20, quarter)


def test_what_is_given_comes_before_what_fast_and_best_change():
    given = {"n_members": 4, "kernel_features": 7, "max_epochs": 9}
    for preset in ("fast", "best"):
        found = asdict(resolve(preset, given, SHAPE))
        assert {name: found[name] for name in given} == given


@pytest.mark.parametrize(
    ("preset", "n_features", "sparse", "columns"),
    [
        ("default", FEW_FEATURES, False, 500),
        (
            "default",
            FEW_FEATURES - 1,
            False,
            0,
        ),  # numbers by rank, a network learns all there is
        ("default", 1000, True, 0),  # texts have next to no near ones
        ("paper", 100, False, 0),
        ("authors_code", 100, False, 0),
    ],
)
def test_dense_tables_of_many_features_get_kernel_features(preset, n_features, sparse, columns):
    shape = DataShape(1000, n_features, 10, sparse)
    assert resolve(preset, {}, shape).kernel_features == columns
    assert resolve(preset, {"kernel_features": 3}, shape).kernel_features == 3
    assert resolve(preset, {"kernel_features": 0}, shape).kernel_features == 0


@pytest.mark.parametrize("preset", get_args(Preset))
def test_an_objective_sets_the_weights_of_the_loss_unless_they_are_given(preset):
    def weights(objective, **given):
        found = resolve(preset, given, SHAPE, objective)
        return found.lambda_ce, found.lambda_rank, found.lambda_entropy

    assert weights("likelihood") == (1, 0, 0)
    assert weights("paper") == (0.5, 10, 0.5)
    assert weights("paper", lambda_rank=3.0) == (0.5, 3, 0.5)
    assert weights("likelihood", lambda_ce="auto", lambda_entropy=0.2) == (1, 0, 0.2)
    assert resolve(preset, {}, SHAPE, "auto") == resolve(preset, {}, SHAPE)


def test_an_objective_changes_nothing_but_the_weights_and_the_draws():
    plain, paper = (asdict(resolve("default", {}, SHAPE, o)) for o in ("likelihood", "paper"))
    changed = {name for name in plain if plain[name] != paper[name]}
    assert changed == {"lambda_ce", "lambda_rank", "lambda_entropy", "n_draws"}


@pytest.mark.parametrize(("n_labels", "n_draws"), [(14, 256), (55, 256), (141, 116), (983, 32)])
def test_the_likelihood_is_bounded_by_more_draws_the_fewer_labels(n_labels, n_draws):
    shape = DataShape(1000, 10, n_labels)
    assert resolve("default", {}, shape, "likelihood").n_draws == n_draws
    assert resolve("default", {"n_draws": 8}, shape, "likelihood").n_draws == 8
    assert resolve("default", {}, shape).n_draws == 32


def test_an_unknown_objective_is_refused_by_name():
    with pytest.raises(ConfigError, match="objective must be one of auto, likelihood, paper"):
        resolve("default", {}, SHAPE, "f1")


def test_hidden_sets_all_widths_unless_they_are_given():
    both = resolve("default", {"hidden": (8, 4)}, SHAPE)
    assert (both.hidden_labels, both.hidden_decoder) == ((8, 4), (4, 8))
    one = resolve("default", {"hidden": (8, 4), "hidden_labels": (3,)}, SHAPE)
    assert (one.hidden_labels, one.hidden_decoder) == ((3,), (4, 8))


def test_text_and_code_of_the_paper_differ_where_documented():
    text, code = (asdict(resolve(p, {}, SHAPE)) for p in ("paper", "authors_code"))
    differences = {name: (text[name], code[name]) for name in text if text[name] != code[name]}
    assert differences == {
        "hidden": ((512, 256), (256, 512, 256)),
        "shared_output": (True, False),
        "beta_power": (2, 1),
        "lambda_ce": (0.5, 0.1),
        "lambda_rank": (10.0, 20.0),
        "lambda_entropy": (0.5, 0.0),
        "rank_gain": (1.0, 5.0),
        "probability_floor": (0.0, 5e-7),
        "lr": (1e-3, 6e-4),
        "max_epochs": (200, 800),
    }
    assert text["n_factors"] == code["n_factors"] == SHAPE.n_labels
    assert text["threshold"] == code["threshold"] == "paper"


def test_default_epochs_make_300_steps_at_least_20_passes_and_fewer_of_very_many_rows():
    small = resolve("default", {"batch_size": 100}, DataShape(200, 5, 3))
    assert small.max_epochs == 150
    large = resolve("default", {"batch_size": 100}, DataShape(20_000, 5, 3))
    assert large.max_epochs == 20
    assert large.patience == 5
    larger = [
        resolve("default", {"batch_size": 100}, DataShape(n, 5, 3)) for n in (10**5, 10**6)
    ]
    assert [settings.max_epochs for settings in larger] == [6, 5]


def test_the_default_widens_for_many_labels_of_many_features_only():
    text, birds, genes = (
        resolve("default", {}, DataShape(5000, *shape))
        for shape in ((1836, 159), (8, 370), (103, 14))
    )
    assert text.hidden == (512,)
    assert text.lambda_rank > 0
    assert text.n_draws >= 20
    many_rows = resolve("default", {}, DataShape(13_000, 500, 983))
    assert len(many_rows.hidden_decoder) > len(text.hidden_decoder)
    assert (many_rows.lambda_rank, many_rows.dropout_inputs) == (0, 0)
    news = [
        resolve("default", {}, DataShape(n, 1006, 20, sparse))
        for n, sparse in ((20_000, True), (5000, True), (20_000, False))
    ]
    assert [s.dropout_inputs > 0 for s in news] == [True, False, False]
    assert {s.hidden for s in news} == {(256, 256)}
    for other in (birds, genes):
        assert (other.hidden, other.lambda_rank, other.dropout_inputs) == ((256, 256), 0, 0)
    assert resolve("default", {"max_epochs": 100}, SHAPE).patience == 25


def test_default_batch_grows_with_the_rows_between_16_and_128():
    sizes = [
        resolve("default", {}, DataShape(n, 5, 3)).batch_size
        for n in (1, 100, 600, 10**4, 10**7)
    ]
    assert sizes == [16, 16, 64, 128, 128]


def test_thresholds_are_where_the_expectation_is_highest_or_the_best_of_all():
    auto = resolve("default", {}, SHAPE)
    assert auto.threshold_kind("macro_f1") == auto.threshold_kind("hamming") == "expected"
    assert auto.threshold_kind("micro_f1") == auto.threshold_kind("example_f1") == "exact"
    paper = resolve("default", {"threshold": "paper"}, SHAPE)
    assert paper.threshold_kind("macro_f1") == "paper"


def test_an_even_number_of_draws_comes_in_pairs():
    assert resolve("default", {"n_draws": 8}, SHAPE).antithetic
    assert not resolve("default", {"n_draws": 7}, SHAPE).antithetic


def test_settings_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        resolve("default", {}, SHAPE).lr = 1.0


def test_every_setting_is_documented():
    assert all(len(meaning) > 10 for meaning in setting_docs().values())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lr", "1e-3", 1e-3),
        ("latent_dim", "12", 12),
        ("kernel_features", "0", 0),
        ("hidden", "512,256", (512, 256)),
        ("hidden", "512, 256,", (512, 256)),
        ("hidden", "auto", "auto"),
        ("patience", "None", None),
        ("patience", "7", 7),
        ("shared_output", "False", False),
        ("shared_output", "true", True),
        ("lr_schedule", "cosine", "cosine"),
        ("threshold", "per_label", "per_label"),
        ("monitor", "log_loss", "log_loss"),
    ],
)
def test_a_setting_is_parsed_from_text(name, text, value):
    assert parse_setting(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lr", "fast"),
        ("lr", ""),
        ("latent_dim", "1.5"),
        ("latent_dim", "true"),
        ("kernel_features", "many"),
        ("kernel_features", "-1"),
        ("kernel_features", "none"),
        ("hidden", "512,abc"),
        ("hidden", ""),
        ("hidden", "-3"),
        ("hidden", "none"),
        ("shared_output", "maybe"),
        ("shared_output", "1"),
        ("lr_schedule", "linear"),
        ("threshold", "none"),
    ],
)
def test_wrong_text_is_refused_with_the_name_of_its_setting(name, text):
    with pytest.raises(ConfigError, match=f"^{name} must be"):
        resolve("default", {name: parse_setting(name, text)}, SHAPE)


def test_an_unknown_setting_is_refused_and_the_known_ones_listed():
    with pytest.raises(ConfigError, match=r"no setting 'learning_rate'; known: latent_dim, "):
        parse_setting("learning_rate", "1")
