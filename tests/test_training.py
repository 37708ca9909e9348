"""The training loop: presets, schedules, stopping, what it learns."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

from mpvae import inference
from mpvae.config import DataShape
from mpvae.data import simulate_probit
from mpvae.loop import seeded
from mpvae.losses import mpvae_loss
from mpvae.members import fit_members
from mpvae.networks import MPVAE
from mpvae.presets import resolve
from mpvae.rows import Rows
from mpvae.training import train

SMALL = {"hidden": (32,), "latent_dim": 4, "n_draws": 8, "batch_size": 64}


def _rows(n=300, **kwargs):
    data = simulate_probit(n, n_labels=4, **kwargs)
    return Rows(data.X.astype(np.float32), data.Y.astype(np.float32), np.ones(n))


def _settings(rows, preset="default", **given):
    shape = DataShape(len(rows), rows.X.shape[1], rows.Y.shape[1])
    return resolve(preset, SMALL | given, shape)


def _train(rows, validation=None, *, seed=0, **given):
    return train(rows, validation, _settings(rows, **given), metric="micro_f1", seed=seed)


def _weights(trained):
    return torch.cat([p.flatten() for p in trained.network.state_dict().values()])


def test_same_seed_gives_the_same_weights_and_another_seed_others():
    rows = _rows()
    a, b, c = (_train(rows, seed=s, max_epochs=3) for s in (1, 1, 2))
    assert torch.equal(_weights(a), _weights(b))
    assert not torch.equal(_weights(a), _weights(c))


def test_training_leaves_the_callers_random_state_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    _train(_rows(), max_epochs=2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("preset", ["default", "paper", "authors_code"])
def test_every_preset_lowers_its_loss(preset):
    rows = _rows()
    result = _train(rows, preset=preset, max_epochs=15)
    totals = [record.terms["total"] for record in result.history]
    assert totals[-1] < totals[0]
    assert all(math.isfinite(value) for r in result.history for value in r.terms.values())


def test_the_authors_code_has_an_output_layer_per_branch_and_the_text_one():
    shape = DataShape(100, 5, 3)
    text = MPVAE(5, 3, resolve("paper", {}, shape))
    code = MPVAE(5, 3, resolve("authors_code", {}, shape))
    assert text.output_y is None
    assert code.output_y is not None
    assert code.output_y.weight is not code.output.weight


def test_rows_without_present_or_without_absent_labels_are_ordinary_input():
    rows = _rows()
    Y = rows.Y.copy()
    Y[::3], Y[1::3] = 0, 1
    for preset in ("default", "paper", "authors_code"):
        result = _train(Rows(rows.X, Y, rows.weight), preset=preset, max_epochs=2)
        assert _weights(result).isfinite().all()


def test_the_best_epoch_on_validation_rows_is_kept():
    rows, validation = _rows(seed=0), _rows(100, seed=1)
    result = _train(rows, validation, max_epochs=12, lr=0.02, patience=None)
    losses = [record.val_log_loss for record in result.history]
    assert len(losses) == 12
    best = max(i for i, record in enumerate(result.history) if record.is_best)
    assert losses[best] == min(losses)


def test_patience_stops_and_none_trains_to_the_end():
    rows, validation = _rows(60, seed=0), _rows(60, seed=5)
    stopped = _train(rows, validation, max_epochs=200, lr=0.05, patience=3)
    assert len(stopped.history) < 200
    last_best = max(r.epoch for r in stopped.history if r.is_best)
    assert len(stopped.history) == last_best + 3


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1, 1, 1, 1]), ("step", [1, 1, 0.5, 0.5]), ("cosine", [1, 0.85, 0.5, 0.15])],
)
def test_the_learning_rate_follows_its_schedule(schedule, expected):
    rows = _rows(64)
    result = _train(
        rows, max_epochs=4, lr=0.001, lr_schedule=schedule, lr_decay=0.5, lr_decay_times=2
    )
    rates = [record.lr / 0.001 for record in result.history]  # one step per epoch
    np.testing.assert_allclose(rates, expected, atol=0.005)


def test_row_weights_count_in_the_objective():
    """Two opposite answers to the same question: the heavier one wins."""
    n = 200
    X = np.zeros((n, 1), np.float32)
    Y = np.tile(np.array([[1], [0]], np.float32), (n // 2, 1))
    weight = np.tile([9.0, 1.0], n // 2)
    rows = Rows(X, Y, weight)
    network = _train(rows, max_epochs=60, dropout=0.0, lr=0.01).network
    p = inference.marginals([network.double()], X[:1], 16)[0]
    # the share is 9/10; the last steps of training leave a noise of some hundredths
    np.testing.assert_allclose(p, [0.9], atol=0.05)


def test_a_batch_with_an_infinite_loss_is_left_out_and_told_with_term_and_remedy():
    rows = _rows()
    X = rows.X.copy()
    X[7, 0] = np.inf
    number = np.arange(1000, 1000 + len(X))
    told = (
        r"epoch 1, batch \d+ of \d+ \(rows 1007, .* the loss \(total, .* not finite.*lower lr"
    )
    with pytest.warns(UserWarning, match=told):
        result = _train(Rows(X, rows.Y, rows.weight, number=number), max_epochs=2)
    assert [record.skipped for record in result.history] == [1, 1]
    assert all(np.isfinite(record.terms["total"]) for record in result.history)
    assert all(p.isfinite().all() for p in result.network.parameters())


def test_an_interrupt_keeps_the_members_finished_so_far():
    rows = _rows()
    settings = _settings(rows, n_members=3, max_epochs=3)

    def interrupt(member, record):
        if (member, record.epoch) == (1, 2):
            raise KeyboardInterrupt

    fitted = fit_members(
        rows, None, settings, metric="micro_f1", seed=0, device="cpu", on_epoch=interrupt
    )
    assert fitted.interrupted
    assert len(fitted.networks) == 2
    assert len(fitted.held_out.P) < len(rows)


def test_folds_hold_out_every_row_once():
    rows = _rows()
    fitted = fit_members(
        rows,
        None,
        _settings(rows, n_members=3, max_epochs=1),
        metric="micro_f1",
        seed=0,
        device="cpu",
        on_epoch=lambda member, record: None,
    )
    assert len(fitted.held_out.P) == len(rows)
    assert fitted.held_out.Y.sum() == rows.Y.sum()


def test_without_factors_labels_are_independent_given_the_code():
    result = _train(_rows(), n_factors=0, max_epochs=2)
    assert result.network.B.shape == (4, 0)
    assert all(math.isfinite(r.terms["total"]) for r in result.history)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_an_infinite_divergence_does_no_harm_where_its_weight_is_zero(beta):
    rows = _rows()
    settings = _settings(rows, beta=beta)
    network = MPVAE(rows.X.shape[1], rows.Y.shape[1], settings)
    x, y = torch.as_tensor(rows.X), torch.as_tensor(rows.Y)
    branches = network(x, y, torch.zeros(len(x), settings.latent_dim))
    far = Independent(Normal(branches.p_z_x.mean + 1e30, 1.0), 1)
    u = torch.zeros(len(x), 1, settings.n_factors)
    weight = torch.ones(len(x))
    terms = mpvae_loss(branches._replace(q_z_y=far), network.B, u, y, weight, settings)
    assert math.isfinite(terms.total.item()) == (beta == 0)
    assert math.isfinite(terms.kl.item()) == (beta == 0)


def test_without_the_label_branch_its_encoder_stays_as_it_began():
    rows = _rows()
    settings = _settings(rows, label_branch=False, max_epochs=2, weight_decay=0.0)
    result = train(rows, None, settings, metric="micro_f1", seed=3)
    with seeded(3):
        start = MPVAE(rows.X.shape[1], rows.Y.shape[1], settings)
    trained = result.network
    for name in ("posterior_net", "prior_net"):
        same = all(
            torch.equal(a, b)
            for a, b in zip(
                getattr(start, name).parameters(),
                getattr(trained, name).parameters(),
                strict=True,
            )
        )
        assert same == (name == "posterior_net")
