"""Settings: the only place where defaults and checks live. Knows no torch."""

from typing import Literal

Metric = Literal["example_f1", "micro_f1", "macro_f1", "hamming", "subset"]
ThresholdKind = Literal["paper", "exact", "per_label"]
