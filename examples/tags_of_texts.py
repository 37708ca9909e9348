"""Tags of texts: 159 tags of bibliography entries, from the words in them (bibtex).

Words are sparse counts. People tag a text with some of the tags that fit it: given the first tag,
which others would they choose?
"""

import numpy as np
from shared import arguments, load, save

from mpvae import MPVAEClassifier
from mpvae.metrics import precision_at_k
from mpvae.report import label_map_figure, precision_figure

quick, out = arguments()
texts = load("bibtex", quick)
train, test = texts.split("train"), texts.split("test")
model = MPVAEClassifier(preset="fast", random_state=0, **quick)
model.fit(train.features(), train.labels())
Y = test.labels().to_numpy()
P = model.predict_proba(test.features())
for k in (1, 3, 5):
    print(f"precision@{k} {precision_at_k(Y, P, k):.3f}")

# The first tag is known: how many of the others are among the five most probable now?
first = np.argmax(Y, axis=1)
more = (Y.sum(1) >= 3).nonzero()[0][:300]
known = np.full((len(more), Y.shape[1]), np.nan)
known[np.arange(len(more)), first[more]] = 1
others = Y[more].copy()
others[np.arange(len(more)), first[more]] = 0
for name, scores in (
    ("words alone", P[more]),
    ("words and the first tag", model.predict_conditional(test.features()[more], known)),
):
    scores = scores.copy()
    scores[np.arange(len(more)), first[more]] = 0
    print(f"other tags, precision@3 from {name}: {precision_at_k(others, scores, 3):.3f}")

print("\ntags that go together, given the words:")
print(
    model.associations(top=6)[["label_a", "label_b", "residual_correlation"]]
    .round(2)
    .to_string()
)
save(out, "map", label_map_figure(model))
save(out, "precision", precision_figure(Y.astype(float), {"mpvae": P}))
