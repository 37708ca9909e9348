"""The words of docs/reproduction.md; every number in it comes from the cells."""

from harness.summary import Summary

CLOSE = 0.03
"""Difference in micro-F1 up to which a rival counts as reproduced."""

INTRODUCTION = """
Every table and figure of Bai, Kong and Gomes (IJCAI 2020), with all six rivals and the peers
one would pick instead. This page is written by `python benchmarks/paper.py page` from the JSON
files in `benchmarks/results/paper`; `mpvae benchmark all` makes those.
"""

PROTOCOL = """
{seeds} seeds; mean ± standard deviation. A method without randomness (MLKNN, the support vector
machine, logistic regression) runs once. Settings come from a search on validation rows: each
method's grid is in `benchmarks/harness/methods.py`, and is tried beyond its first entry where
that took less than {search} s. One cell may take {minutes} minutes on one core and {gb} GB;
where that is not enough the table has a dash and the reason stands below it.
"""

ROWS = """
Every method learns from the training rows; validation rows serve its early stopping (where it
has any) and the choice of one threshold per metric among the paper's 27. **MPVAE (default)** is
`MPVAEClassifier()` as users get it: it sees the same training and validation rows as one table,
trains its networks on folds of it and takes its thresholds from out-of-fold predictions.
**MPVAE (paper's settings)** is one network of `preset="paper"`, treated as every rival is. No
method sees a test row.
"""

PUBLISHED = """
On the paper's own data sets. The column *on test* has the threshold chosen on test rows, as the
authors' code does; *at ½* makes no choice at all. The difference is ours (thresholds from
validation rows) minus published.
"""

NOISE = """
Labels of training and validation rows are flipped at random; test rows stay clean. Settings are
those found without noise.
"""

COVARIANCE = """
t-SNE of the rows of the Cholesky factor of Sigma_g, species coloured by group (the last word of
the common name: *teal*, *warbler*, *fritillary*).
"""

NEIGHBOURS = """
Is a species' nearest neighbour of its own group more often than chance? Chance is the mean over
shuffled groups; p is the share of shuffles that do as well, the largest of the seeds.
"""

ABLATION = """
One network of `preset="paper"` with one thing changed; thresholds from validation rows.
"""

ABLATIONS = {
    "paper": "**the paper's model** (beta 1.1, 100 draws)",
    "no_covariance": "no covariance (B = 0)",
    "no_label_branch": "no label branch",
    "no_cross_entropy": "no cross-entropy",
    "no_ranking": "no ranking term",
    "no_entropy": "no entropy term",
    "beta_0": "beta = 0",
    "beta_1": "beta = 1",
    "beta_4": "beta = 4",
    "draws_1": "1 draw",
    "draws_10": "10 draws",
    "likelihood_only": "cross-entropy alone (weight 1)",
}

DIFFERENCES = """
"""


def explanation(tables: dict[tuple[str, str], Summary], data: str, method: str) -> str:
    """Why a rival differs from the published number."""
    found = tables[data, method]
    if not found.runs:
        return f"{found.reason}."
    return ""
