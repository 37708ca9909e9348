"""Write sites.csv and new_sites.csv: a simulated survey, one site per row, climate and species.

The species share two hidden gradients beside the climate, so some of them are found together
more often than the climate explains.
"""

from pathlib import Path

import numpy as np
import pandas as pd

N_SITES, N_TRAIN = 600, 480
SPECIES = ("alder", "birch", "fern", "heather", "moss", "oak", "pine", "sedge")


def main() -> None:
    rng = np.random.default_rng(1)
    climate = pd.DataFrame(
        {
            "temperature": rng.normal(9, 3, N_SITES),
            "rainfall": rng.gamma(8, 100, N_SITES),
            "elevation": rng.gamma(2, 250, N_SITES),
            "soil": rng.choice(["sand", "clay", "peat", "loam"], N_SITES),
        }
    )
    numbers = climate.drop(columns="soil")
    x = ((numbers - numbers.mean()) / numbers.std()).to_numpy()
    x = np.column_stack([x, climate["soil"] == "peat"])
    W = rng.normal(0, 0.8, (x.shape[1], len(SPECIES)))
    B = rng.normal(0, 0.9, (len(SPECIES), 2))
    utility = x @ W - 0.4 + rng.normal(size=(N_SITES, 2)) @ B.T
    present = utility + rng.normal(size=utility.shape) > 0
    table = climate.round({"temperature": 1, "rainfall": 0, "elevation": 0})
    table.loc[rng.random(N_SITES) < 0.05, "rainfall"] = np.nan  # some gauges failed
    table.insert(0, "site_id", [f"S{i:04d}" for i in range(N_SITES)])
    for k, name in enumerate(SPECIES):
        table[f"species_{name}"] = present[:, k].astype(int)
    here = Path(__file__).parent
    table[:N_TRAIN].to_csv(here / "sites.csv", index=False)
    table[N_TRAIN:].to_csv(here / "new_sites.csv", index=False)


if __name__ == "__main__":
    main()
