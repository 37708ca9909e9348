"""Tags of texts: 159 tags of bibliography entries, from the words in them (bibtex).

Words are sparse counts. People tag a text with some of the tags that fit it: given the
first tag, which others would they choose? Here the words say nearly all of it: one known tag
adds little, though some tags clearly go together.
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
X, Y = test.features(), test.labels().to_numpy()
P = model.predict_proba(X)
for k in (1, 3, 5):
    print(f"precision@{k} {precision_at_k(Y, P, k):.3f}")

# The first tag of texts that have three or more is known: which others are there?
some = np.flatnonzero(Y.sum(1) >= 3)[:300]
first = (np.arange(len(some)), np.argmax(Y[some], axis=1))
known = np.full((len(some), Y.shape[1]), np.nan)
known[first] = 1
others = Y[some].copy()
others[first] = 0
print("\nprecision@3 of the other tags")
given = model.predict_conditional(X[some], known)
for name, scores in (("words alone", P[some]), ("and the first tag", given)):
    scores = np.array(scores)
    scores[first] = 0
    print(f"  {name:18s} {precision_at_k(others, scores, 3):.3f}")

print("\ntags that go together, given the words:")
pairs = model.associations(top=6)
print(pairs[["label_a", "label_b", "residual_correlation"]].round(2).to_string(index=False))
save(out, "map", label_map_figure(model))
save(out, "precision", precision_figure(Y.astype(float), {"mpvae": P}))
