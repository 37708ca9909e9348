"""The MPVAE networks: two Gaussian encoders, one decoder, one covariance factor."""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn import functional

from mpvae.config import Settings

Gaussian: TypeAlias = "Independent[Normal]"


class Branches(NamedTuple):
    """What one forward pass yields; suffix ``_x``: features only, ``_y``: with labels."""

    p_z_x: Gaussian
    q_z_y: Gaussian
    m_x: Tensor  # (N, L)
    m_y: Tensor  # (N, L)


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
    """

    def __init__(self, n_features: int, n_labels: int, settings: Settings) -> None:
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

    def forward(self, x: Tensor, y: Tensor, eps: Tensor) -> Branches:
        """Run both branches on one noise draw ``eps`` (N, d), as in the authors' code."""
        x = self.drop_inputs(x)
        p_z_x = self.prior(x)
        q_z_y = self.posterior(x, y)
        z = torch.cat([d.mean + d.stddev * eps for d in (p_z_x, q_z_y)])
        hidden = self.decoder(torch.cat([x.repeat(2, 1), z], -1))  # one pass for both branches
        if self.output_y is None:
            m_x, m_y = self.output(hidden).chunk(2)
        else:
            hidden_x, hidden_y = hidden.chunk(2)
            m_x, m_y = self.output(hidden_x), self.output_y(hidden_y)
        return Branches(p_z_x, q_z_y, m_x, m_y)

    def prior(self, x: Tensor) -> Gaussian:
        """Distribution of the latent code given the features, p(z | x)."""
        return _gaussian(self.prior_net(x))

    def posterior(self, x: Tensor, y: Tensor) -> Gaussian:
        """Distribution of the code given the labels that are not NaN too, q(z | x, y)."""
        seen = [x, y.nan_to_num(0)]
        if self.sees_known:
            seen.append((~y.isnan()).to(x))
        return _gaussian(self.posterior_net(torch.cat(seen, -1)))

    def decode(self, x: Tensor, z: Tensor) -> Tensor:
        """Mean ``m`` (N, L) of the latent utilities, as the feature branch has it."""
        return self.decode_codes(self.decoder_input(x), z)

    def decoder_input(self, x: Tensor) -> Tensor:
        """What the features add to the decoder's first layer: the same for every code."""
        first: nn.Linear = self.decoder[0]  # type: ignore[assignment]
        return functional.linear(x, first.weight[:, : -self.latent_dim], first.bias)

    def decode_codes(self, from_features: Tensor, z: Tensor) -> Tensor:
        """As `decode`, for many codes of a row: ``z`` (..., d), `decoder_input` (..., H)."""
        first: nn.Linear = self.decoder[0]  # type: ignore[assignment]
        hidden = (z @ first.weight[:, -self.latent_dim :].mT).add_(from_features)
        m: Tensor = self.output(self.decoder[1:](hidden))
        return m

    def decode_with_slope(self, from_features: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """As `decode_codes` without dropout, for ``z`` (N, d), and dm/dz of shape (N, L, d)."""
        first: nn.Linear = self.decoder[0]  # type: ignore[assignment]
        into_first = first.weight[:, -self.latent_dim :]
        hidden = from_features + z @ into_first.mT
        slope = into_first.expand(len(z), *into_first.shape)
        for layer in [*list(self.decoder)[1:], self.output]:
            if isinstance(layer, nn.Linear):
                hidden, slope = layer(hidden), layer.weight @ slope
            elif isinstance(layer, nn.ReLU):
                slope = slope * (hidden > 0)[..., None]
                hidden = layer(hidden)
        return hidden, slope


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
