"""Adam, with a learning rate for each group of parameters.

torch's own class computes the same step. Making one loads torch's compiler, which takes
seconds, as long as many a whole fit here; the function underneath does not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.adam import adam

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


@dataclass(slots=True, eq=False)
class Group:
    """Parameters that share a learning rate, and their running moments."""

    params: Sequence[Tensor]
    weight_decay: float = 0.0
    factor: float = 1.0  # of the learning rate
    first: list[Tensor] = field(init=False)
    second: list[Tensor] = field(init=False)
    steps: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        """Begin without moments."""
        self.first = [torch.zeros_like(p) for p in self.params]
        self.second = [torch.zeros_like(p) for p in self.params]
        self.steps = [torch.zeros((), device=p.device) for p in self.params]

    def moments(self) -> dict[str, list[Tensor]]:
        """All that changes with a step, by name."""
        return {"first": self.first, "second": self.second, "steps": self.steps}


class Adam:
    """Adam (Kingma and Ba 2015) over groups of parameters; one without gradient stays."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self.groups = [group for group in groups if group.params]

    def state(self) -> dict[str, Tensor]:
        """Running moments and numbers of steps, by name."""
        return {
            f"{kind}.{k}.{i}": value
            for k, group in enumerate(self.groups)
            for kind, values in group.moments().items()
            for i, value in enumerate(values)
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on with the moments of another."""
        for name, value in self.state().items():
            value.copy_(state[name])

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for group in self.groups:
            for p in group.params:
                p.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move every parameter against its gradient."""
        for group in self.groups:
            moved = [i for i, p in enumerate(group.params) if p.grad is not None]
            params, first, second, steps = (
                [values[i] for i in moved]
                for values in (group.params, group.first, group.second, group.steps)
            )
            adam(
                params,
                [p.grad for p in params if p.grad is not None],
                first,
                second,
                [],
                steps,
                fused=True,
                grad_scale=None,
                found_inf=None,
                amsgrad=False,
                beta1=_BETA1,
                beta2=_BETA2,
                lr=lr * group.factor,
                weight_decay=group.weight_decay,
                eps=_EPS,
                maximize=False,
            )
