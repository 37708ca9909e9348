"""The MPVAE networks: two Gaussian encoders, one decoder, one covariance factor."""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn import functional

from mpvae import probit
from mpvae.config import Settings

Gaussian: TypeAlias = "Independent[Normal]"


class Branches(NamedTuple):
    """What one forward pass yields; suffix ``_x``: features only, ``_y``: with labels."""

    p_z_x: Gaussian
    q_z_y: Gaussian
    m_x: Tensor  # (N, L)
    m_y: Tensor  # (N, L)


class FromFeatures(NamedTuple):
    """What the features of some rows contribute to the decoder, the same for every code."""

    hidden: Tensor  # (N, H), into its first layer
    offset: Tensor | None  # (N, L), onto m

    def of_rows(self, rows: Tensor) -> "FromFeatures":
        """Of some rows alone."""
        return FromFeatures(
            self.hidden[rows], None if self.offset is None else self.offset[rows]
        )

    def for_draws(self) -> "FromFeatures":
        """With an axis for codes after the rows."""
        return FromFeatures(
            self.hidden[:, None], None if self.offset is None else self.offset[:, None]
        )


class MPVAE(nn.Module):
    """Encode features and labels into one latent space, decode probit means.

    The factor loadings ``B`` belong to the model, not to a row: the label covariance
    ``Sigma_g = I + B B^T`` is global.

    Parameters
    ----------
    n_features, n_labels : int
        Columns of x and of y.
    settings : Settings
        Layer widths, latent dimension, number of factors, dropout.
    with_evidence : bool
        Whether x has L more columns at its end: another model's probabilities on the probit
        scale, which `trust` weighs and adds to m. Encoders and decoder do not see them.
    """

    trust: Tensor | None

    def __init__(
        self,
        n_features: int,
        n_labels: int,
        settings: Settings,
        with_evidence: bool = False,
    ) -> None:
        super().__init__()
        d = self.latent_dim = settings.latent_dim
        dropout = settings.dropout
        self.prior_net = mlp(n_features, settings.hidden, 2 * d, dropout)  # p(z | x)
        self.sees_known = settings.hide_labels > 0  # or all labels are always known
        n_seen = n_features + n_labels * (2 if self.sees_known else 1)
        self.posterior_net = mlp(n_seen, settings.hidden_labels, 2 * d, dropout)  # q(z | x, y)
        # Both branches share the decoder; the authors' code has no dropout there.
        decoder, dropped = settings.hidden_decoder, settings.dropout_decoder
        self.decoder = mlp(n_features + d, decoder[:-1], decoder[-1], dropped).append(
            nn.ReLU(inplace=True)
        )
        if dropped:
            self.decoder.append(nn.Dropout(dropped))
        self.drop_inputs = nn.Dropout(settings.dropout_inputs)
        self.output = nn.Linear(decoder[-1], n_labels)
        self.output_y = None if settings.shared_output else nn.Linear(decoder[-1], n_labels)
        self.B = nn.Parameter(torch.empty(n_labels, settings.n_factors))
        if settings.n_factors:
            nn.init.xavier_uniform_(self.B)
        self.register_buffer("trust", torch.zeros(n_labels) if with_evidence else None)

    def forward(self, x: Tensor, y: Tensor, eps: Tensor) -> Branches:
        """Run both branches on one noise draw ``eps`` (N, d), as in the authors' code.

        For training, before there is evidence.
        """
        x = self.drop_inputs(x)
        p_z_x = self.prior(x)
        q_z_y = self.posterior(x, y)
        z = torch.stack([d.mean + d.base_dist.scale * eps for d in (p_z_x, q_z_y)])
        hidden = self._hidden(self.from_features(x), z)  # (2, N, H): one pass for both branches
        if self.output_y is None:
            m_x, m_y = self.output(hidden).unbind()
        else:
            m_x, m_y = self.output(hidden[0]), self.output_y(hidden[1])
        return Branches(p_z_x, q_z_y, m_x, m_y)

    def prior(self, x: Tensor) -> Gaussian:
        """Distribution of the latent code given the features, p(z | x)."""
        return _gaussian(self.prior_net(self._inputs(x)))

    def posterior(self, x: Tensor, y: Tensor) -> Gaussian:
        """Distribution of the code given the labels that are not NaN too, q(z | x, y)."""
        seen = [self._inputs(x), y.nan_to_num(0)]
        if self.sees_known:
            seen.append((~y.isnan()).to(x))
        return _gaussian(self.posterior_net(torch.cat(seen, -1)))

    def decode(self, x: Tensor, z: Tensor) -> Tensor:
        """Mean ``m`` (N, L) of the latent utilities, as the feature branch has it."""
        return self.decode_codes(self.from_features(x), z)

    def from_features(self, x: Tensor) -> FromFeatures:
        """What the features add to the decoder's first layer and to m, whatever the code."""
        first: nn.Linear = self.decoder[0]  # type: ignore[assignment]
        into_first = first.weight[:, : -self.latent_dim]
        hidden = functional.linear(self._inputs(x), into_first, first.bias)
        return FromFeatures(hidden, self._offset(x))

    def decode_codes(self, given: FromFeatures, z: Tensor) -> Tensor:
        """As `decode`, for codes ``z`` (..., d) and features that broadcast with them."""
        m: Tensor = self.output(self._hidden(given, z))
        return m if given.offset is None else m + given.offset

    def decode_with_slope(self, given: FromFeatures, z: Tensor) -> tuple[Tensor, Tensor]:
        """As `decode_codes` without dropout, for ``z`` (N, d), and dm/dz of shape (N, L, d)."""
        first: nn.Linear = self.decoder[0]  # type: ignore[assignment]
        into_first = first.weight[:, -self.latent_dim :]
        hidden = given.hidden + z @ into_first.mT
        slope = into_first.expand(len(z), *into_first.shape)
        for layer in [*list(self.decoder)[1:], self.output]:
            if isinstance(layer, nn.Linear):
                hidden, slope = layer(hidden), layer.weight @ slope
            elif isinstance(layer, nn.ReLU):
                slope = slope * (hidden > 0)[..., None]
                hidden = layer(hidden)
        return (hidden if given.offset is None else hidden + given.offset), slope

    def _hidden(self, given: FromFeatures, z: Tensor) -> Tensor:
        """Last hidden layer of the decoder."""
        first: nn.Linear
        first, *others = self.decoder  # type: ignore[assignment]
        hidden: Tensor = (z @ first.weight[:, -self.latent_dim :].mT).add_(given.hidden)
        for layer in others:
            hidden = layer(hidden)
        return hidden

    def _inputs(self, x: Tensor) -> Tensor:
        return x if self.trust is None else x[:, : -len(self.trust)]

    def _offset(self, x: Tensor) -> Tensor | None:
        """What the evidence adds to m: with trust 1 and nothing else, its own marginals."""
        if self.trust is None:
            return None
        return self.trust * probit.scale(self.B) * x[:, -len(self.trust) :]


def mlp(n_in: int, hidden: tuple[int, ...], n_out: int, dropout: float) -> nn.Sequential:
    """Fully connected layers with ReLU, each hidden one followed by dropout."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(n_in, width), nn.ReLU(inplace=True)]
        if dropout:
            layers.append(nn.Dropout(dropout))
        n_in = width
    return nn.Sequential(*layers, nn.Linear(n_in, n_out))


def _gaussian(params: Tensor) -> Gaussian:
    mean, log_var = params.chunk(2, -1)
    return Independent(Normal(mean, (0.5 * log_var).exp(), validate_args=False), 1)
