"""Tables of features and labels: reading them, splitting them, simulating them."""

from mpvae.data.authors import read_authors
from mpvae.data.folder import data_folder
from mpvae.data.read import read_table
from mpvae.data.splits import stratified_folds, stratified_split
from mpvae.data.synthetic import SyntheticProbit, simulate_probit
from mpvae.data.table import LabelledTable
from mpvae.data.yeast import load_yeast

__all__ = [
    "LabelledTable",
    "SyntheticProbit",
    "data_folder",
    "load_yeast",
    "read_authors",
    "read_table",
    "simulate_probit",
    "stratified_folds",
    "stratified_split",
]
