"""Birds on survey routes: which species go together once climate is accounted for?

370 species on 2,752 routes of the North American Breeding Bird Survey, with eight variables
of climate and place. The model learns which species share routes beyond what climate
explains, and what a survey of some species says about the others.
"""

import numpy as np
from shared import apart, arguments, load, save

from mpvae import MPVAEClassifier
from mpvae.report import associations_figure, label_map_figure, moved_figure

quick, out = arguments()
birds = load("bbs_birds", quick)
train, test = apart(birds)
print(f"{len(train)} routes to learn from, {len(test)} to ask about")
model = MPVAEClassifier(preset="fast", random_state=0, **quick).set_output(transform="pandas")
model.fit(train.features(), train.labels())
X, Y = test.features(), test.labels()
print(f"micro-F1 {model.score(X, Y):.3f} on routes not seen")

# Somebody has looked for every third species, and found some of them. What of the others?
known = Y.astype(float)
known.loc[:, np.arange(Y.shape[1]) % 3 > 0] = np.nan
before, after = model.predict_proba(X), model.predict_conditional(X, known)
unseen = known.isna().to_numpy()
there = Y.to_numpy()[unseen] == 1
print("\nlog-loss of the other species")
for name, P in (("climate alone", before), ("and what was found", after)):
    p = P.to_numpy()[unseen]
    print(f"  {name:18s} {-np.log(np.where(there, p, 1 - p)).mean():.4f}")

print("\nspecies that share routes beyond what climate explains:")
pairs = model.associations(top=5)
print(pairs[["label_a", "label_b", "residual_correlation"]].round(2).to_string(index=False))

seen = pairs["label_a"][0]
i = int(np.argmax(Y[seen].to_numpy()))
moved = model.predict_conditional(X.iloc[[i]], Y.iloc[[i]][[seen]])
figure = moved_figure(birds.label_names, before.to_numpy()[i], moved.to_numpy()[0], seen)
save(out, "moved", figure)
save(out, "map", label_map_figure(model))
save(out, "associations", associations_figure(model, 8))
