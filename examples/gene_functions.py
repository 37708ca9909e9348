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
Y = test.labels().to_numpy()
for metric in ("example_f1", "micro_f1", "macro_f1", "hamming"):
    Z = model.predict(test.features(), metric=metric)
    print(f"{metric:12s} {DECISION_METRICS[metric](Y, Z):.4f}")

# Sets that hold all functions of a gene in nine of ten cases
inside = model.predict_set(test.features(), 0.9)
covered = ((inside >= Y).all(axis=1)).mean()
print(
    f"\nsets of {inside.sum(1).mean():.1f} functions hold all true ones for {100 * covered:.0f} % of genes"
)

print("\nfunctions that go together, given the measurements:")
print(
    model.associations(top=4)[["label_a", "label_b", "residual_correlation"]]
    .round(2)
    .to_string()
)
save(out, "correlation", correlation_figure(model))
P = model.predict_proba(test.features())
save(out, "reliability", reliability_figure(Y.astype(float), {"mpvae": P}))
