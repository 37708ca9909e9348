"""Side effects of drugs: 27 organ systems that may be disturbed, from 38 properties (SIDER).

Trials report some effects early. Given these, which others should one watch for? And how good is
such a warning?
"""

import numpy as np
from shared import arguments, load, save

from mpvae import MPVAEClassifier
from mpvae.metrics import log_loss
from mpvae.report import associations_figure, correlation_figure

quick, out = arguments()
drugs = load("sider", quick)
rng = np.random.default_rng(0)
order = rng.permutation(len(drugs))
train, test = drugs.rows(order[: len(order) * 4 // 5]), drugs.rows(order[len(order) * 4 // 5 :])
model = MPVAEClassifier(random_state=0, **quick).fit(train.features(), train.labels())
X, Y = test.features(), test.labels().to_numpy().astype(float)
known = np.where(
    np.arange(Y.shape[1]) < 13, Y, np.nan
)  # half of the systems have been looked at
before, after = model.predict_proba(X)[:, 13:], model.predict_conditional(X, known)[:, 13:]
print(
    f"log-loss of the other systems: {log_loss(Y[:, 13:], before):.4f} from the molecule alone, ",
    end="",
)
print(f"{log_loss(Y[:, 13:], after):.4f} once 13 systems are known")

# How probable is it that a drug disturbs none of the heart, the liver and the kidneys?
organs = ["Cardiac disorders", "Hepatobiliary disorders", "Renal and urinary disorders"]
none = np.full(Y.shape, np.nan)
none[:, [list(drugs.label_names).index(name) for name in organs]] = 0
together = np.exp(model.log_prob(X, none))
apart = np.prod(
    1 - model.predict_proba(X)[:, [list(drugs.label_names).index(n) for n in organs]], axis=1
)
print(
    f"none of heart, liver, kidneys: {together.mean():.3f} on average, {apart.mean():.3f} if independent, ",
    end="",
)
found = (Y[:, [list(drugs.label_names).index(n) for n in organs]] == 0).all(1).mean()
print(f"{found:.3f} found")

save(out, "correlation", correlation_figure(model))
save(out, "associations", associations_figure(model, 8))
