"""Birds on survey routes: which species go together once climate is accounted for?

370 species on 2,752 routes of the North American Breeding Bird Survey, with eight variables of
climate and place. The model learns which species share routes beyond what climate explains, and
what a morning's first sightings say about the rest of it.
"""

import numpy as np
from shared import arguments, load, save

from mpvae import MPVAEClassifier
from mpvae.report import associations_figure, label_map_figure, moved_figure

quick, out = arguments()
birds = load("bbs_birds", quick, labels=60 if quick else None)
rng = np.random.default_rng(0)
order = rng.permutation(len(birds))
train, test = birds.rows(order[: len(order) * 4 // 5]), birds.rows(order[len(order) * 4 // 5 :])
print(
    f"{len(train)} routes to learn from, {len(test)} to ask about, {len(birds.label_names)} species"
)

model = MPVAEClassifier(preset="fast", random_state=0, **quick).set_output(transform="pandas")
model.fit(train.features(), train.labels())
print(f"micro-F1 {model.score(test.features(), test.labels()):.3f} on routes not seen")

# A morning: the first ten species that are there have been seen. What else is?
X, Y = test.features(), test.labels()
known = Y.where(Y.eq(1) & (Y.cumsum(axis=1) <= 10))
before = model.predict_proba(X)
after = model.predict_conditional(X, known)
unseen = known.isna().to_numpy()
truth = Y.to_numpy()[unseen]


def log_loss(P):
    p = np.where(truth == 1, P.to_numpy()[unseen], 1 - P.to_numpy()[unseen])
    return -np.log(p).mean()


print(f"log-loss of the other species: {log_loss(before):.4f} from climate alone, ", end="")
print(f"{log_loss(after):.4f} with ten sightings")

print("\nspecies that share routes beyond what climate explains:")
print(
    model.associations(top=5)[["label_a", "label_b", "residual_correlation"]]
    .round(2)
    .to_string()
)

strongest = model.associations(top=1).iloc[0]
i = int(np.argmax(Y[strongest.label_a].to_numpy()))
given = Y.iloc[[i]][[strongest.label_a]]
moved = model.predict_conditional(X.iloc[[i]], given).to_numpy()[0]
names = list(birds.label_names)
save(out, "moved", moved_figure(names, before.to_numpy()[i], moved, strongest.label_a))
save(out, "map", label_map_figure(model))
save(out, "associations", associations_figure(model, 8))
