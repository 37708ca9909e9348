"""Side effects of drugs: 27 organ systems that may be disturbed, from 38 properties (SIDER).

Trials report some effects early. Given these, which others should one watch for? And how
good is such a warning?
"""

import numpy as np
from shared import apart, arguments, load, save

from mpvae import MPVAEClassifier
from mpvae.metrics import log_loss
from mpvae.report import associations_figure, correlation_figure

quick, out = arguments()
drugs = load("sider", quick)
train, test = apart(drugs)
model = MPVAEClassifier(random_state=0, **quick).fit(train.features(), train.labels())
X, Y = test.features(), test.labels().to_numpy().astype(float)
P = model.predict_proba(X)

# Half of the systems have been looked at: what of the others?
known = Y.copy()
known[:, 13:] = np.nan
after = model.predict_conditional(X, known)[:, 13:]
print("log-loss of the other systems")
print(f"  from the molecule alone    {log_loss(Y[:, 13:], P[:, 13:]):.4f}")
print(f"  once 13 systems are known  {log_loss(Y[:, 13:], after):.4f}")

# How probable is it that a drug disturbs none of the heart, the liver and the kidneys?
organs = ["Cardiac disorders", "Hepatobiliary disorders", "Renal and urinary disorders"]
at = [drugs.label_names.index(name) for name in organs]
none = np.full(Y.shape, np.nan)
none[:, at] = 0
print("\nnone of heart, liver, kidneys, on average over drugs")
print(f"  together           {np.exp(model.log_prob(X, none)).mean():.3f}")
print(f"  as if independent  {np.prod(1 - P[:, at], axis=1).mean():.3f}")
print(f"  found              {(Y[:, at] == 0).all(1).mean():.3f}")

save(out, "correlation", correlation_figure(model))
save(out, "associations", associations_figure(model, 8))
