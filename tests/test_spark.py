"""The recipe of docs/scale.md: predictions inside Spark, where it is installed."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mpvae import MPVAEClassifier
from mpvae.data import simulate_probit

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs java", allow_module_level=True)

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"


@pytest.mark.filterwarnings("ignore")  # Spark's own
def test_the_recipe_for_spark(tmp_path):
    from pyspark.sql import SparkSession

    data = simulate_probit(300, n_features=4, n_labels=3, n_factors=1, seed=0)
    frame = pd.DataFrame(data.X, columns=list("abcd"))
    model = MPVAEClassifier(preset="fast", max_epochs=2, base=None, random_state=0)
    model.fit(frame, data.Y).save(tmp_path / "model")
    frame.to_parquet(tmp_path / "plots.parquet")
    (recipe,) = re.findall(r"## Spark.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    recipe = recipe.replace('"/shared/plots"', f'"{tmp_path}/plots.parquet"')
    recipe = recipe.replace("/shared", str(tmp_path))
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    try:
        exec(compile(recipe, "scale.md", "exec"), {"spark": spark})
    finally:
        spark.stop()
    found = pd.read_parquet(tmp_path / "answers")
    np.testing.assert_allclose(found, model.predict_proba(frame), rtol=0, atol=1e-12)
