"""Functions of yeast genes: the paper's own data, official split.

103 numbers from micro-arrays and phylogeny, 14 groups of functions. Functions overlap, so the
answer for a gene is a set of labels, best decided together.
"""

from shared import arguments, load, save

from mpvae import MPVAEClassifier
from mpvae.metrics import DECISION_METRICS
from mpvae.report import correlation_figure, reliability_figure

quick, out = arguments()
genes = load("yeast", quick)
train, test = genes.split("train"), genes.split("test")
model = MPVAEClassifier(random_state=0, **quick).fit(train.features(), train.labels())
X, Y = test.features(), test.labels().to_numpy()
for metric in ("example_f1", "micro_f1", "macro_f1", "hamming"):
    print(f"{metric:12s} {DECISION_METRICS[metric](Y, model.predict(X, metric=metric)):.4f}")

inside = model.predict_set(X, 0.9)
covered = (inside >= Y).all(axis=1).mean()
print("\nsets that should hold all functions of nine genes in ten")
print(f"  hold all of {100 * covered:.0f} %, with {inside.sum(1).mean():.1f} functions each")

print("\nfunctions that go together, given the measurements:")
pairs = model.associations(top=4)
print(pairs[["label_a", "label_b", "residual_correlation"]].round(2).to_string(index=False))
save(out, "correlation", correlation_figure(model))
P = model.predict_proba(X)
save(out, "reliability", reliability_figure(Y.astype(float), {"mpvae": P}))
