"""The methods the MPVAE paper compares with, each from its own paper, as classifiers."""

from mpvae.baselines.c2ae import C2AE
from mpvae.baselines.dmvp import DMVP
from mpvae.baselines.lamp import LaMP
from mpvae.baselines.mlaram import MLARAM
from mpvae.baselines.mlknn import MLKNN
from mpvae.baselines.sleec import SLEEC

__all__ = ["C2AE", "DMVP", "MLARAM", "MLKNN", "SLEEC", "LaMP"]
