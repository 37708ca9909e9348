"""The words of docs/peers.md; every number of a result in it comes from the cells."""

INTRODUCTION = """
Is `MPVAEClassifier()`, with no setting touched, ahead of what one would pick instead? This page
is written by `mpvae benchmark page` from the JSON files in `benchmarks/results/paper/peers`;
`mpvae benchmark peers` makes those.
"""

HOW = """
{tables} tables, {seeds} seeds, mean ± standard deviation over seeds; where fewer have run,
their number stands in brackets. Where the test rows are given (*official* below) they stay the
test rows, and the spread is that of the fit alone; elsewhere each seed has its own split,
80/10/10, stratified by labels, and the spread includes the choice of test rows. A method
without randomness runs once on official rows. One protocol for all:

1. A method is fitted on all learning rows, training and validation rows together.

2. Thresholds come from learning rows the fit did not see. MPVAE brings its own, from rows its
members were not trained on. A rival is fitted again without each of 3 stratified folds (beyond
{few:,} learning rows: without the first of 5 folds alone) and its thresholds are fitted to what
it says about the rows left out, by the code that fits MPVAE's and of the same kinds: the best
of all values; for Hamming accuracy and, label by label, macro-F1 the one with the highest
expectation, probabilities being brought to the frequencies of these rows first.

3. Scores are of the test rows, which nothing else has seen. MPVAE's labels are those of
`predict(X, metric=...)`, what a user gets: by threshold, or, for example-F1 and subset
accuracy, by the joint distribution where that did better on held-out rows.

There is no search: one setting for each method on all tables. A cell may take {hours} hours on
one core, the fits for thresholds included, and {gb} GB.
"""

SETTINGS = """
- **MPVAE (default)**: `MPVAEClassifier()`, networks joined by a kernel machine, a forest and
  boosted trees. **MPVAE alone**: `base=None`, the networks by themselves. **MPVAE fast**,
  **MPVAE best**: the presets of these names, in a table of their own.
- **random forest**, **extra trees**: scikit-learn's, 300 trees. Half a vote for each label's
  frequency joins the trees, (300 p + ½ prior) / 300.5: where all trees agree a forest is
  certain, and a single error would ruin its log-loss. Trees of pure leaves do not fit into
  memory where rows times labels are many: the forest has `min_samples_leaf=5` on delicious,
  extra trees have 8 on delicious and disdat_nz_plants.
- **calibrated RBF SVM**: one machine a label, C = 1, gamma "scale", a sigmoid fitted to
  out-of-fold scores; beyond 400,000 rows times labels or 10,000 rows a Nystroem map of 500
  landmarks with logistic regression. **forest and SVM, averaged**: the mean of both
  probabilities.
- **logistic one-vs-rest**, **classifier chain** (random order): C = 1. **MLP**: scikit-learn's,
  512 and 256 units, about 2,000 steps of 200 rows. **boosting**: XGBoost, 100 trees of depth 6
  a label, learning rate 0.1. Trees see features as they are; the others of this list see them
  standardised, or, where sparse, divided by their largest value.
- The paper's six rivals, at their defaults, on {paper}.

Log-loss takes rivals' probabilities no nearer to 0 or 1 than {certain:g}; MPVAE's are left as
they are. Not every rival's scores are meant as probabilities (MLARAM, SLEEC, C2AE).
"""

RANK = """
Rank 1 is best, equal scores share a rank; over the tables on which every method has a score.
"""

FIRST = """
Each of the two against all rivals that ran on the table, not against each other. *Within one
standard error*: behind the best rival by no more than the standard error of the difference
over seeds. Where each seed has its own test rows, that is sd / sqrt(n) of the differences on
the n seeds that both have run, and only these are compared; on official test rows it is
sqrt(sd_a²/n_a + sd_b²/n_b), a method that ran once counting with sd 0.
"""

PRESET = """
Mean difference from the default over the tables where both ran (log-loss: lower is better), and
the scores themselves.
"""

TIME = """
CPU seconds of the one fit on all learning rows (without a rival's fits for thresholds), divided
by those of the random forest on the same rows, on one core.
"""
