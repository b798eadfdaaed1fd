"""What a step costs, learned from steps.

```
seconds = fixed + a for each decode + b for each prompt token + c for each key it attends to
```

Steps of about the same size are one kind, and a kind is remembered until steps of it are seen
again: a server that has long read prompts in pieces of one size still knows what others cost.
Of a long life's kinds those seen last are kept. Least squares over them. Is told seconds and
reads no clock.
"""

from dataclasses import dataclass

from nanoserve.sched.step import StepPlan

MAX_KINDS = 64  # that are remembered; a fit, one for each step with prompts, goes over all
_NEWS = 0.25  # share of a new step in what its kind is remembered by
_STALL = 4.0  # a step that takes so many times what its kind took is a stall, and counts as that
_RIDGE = 1e-6  # of all there is: keeps what no kind tells apart near zero
# Of one, decodes, tokens and keys, so that all are of one size.
_SCALES = (1.0, 16.0, 128.0, 131072.0)
_NUM_COSTS = len(_SCALES)
_LEAST_S = 1e-6  # less than any step takes

Row = list[float]


@dataclass(frozen=True, slots=True)
class StepSize:
    """What the cost of a step depends on.

    Attributes:
        num_decodes: Answers it goes on with.
        num_prompt_tokens: Tokens of prompts it reads.
        num_keys: Keys that these attend to, summed over the tokens.
    """

    num_decodes: int
    num_prompt_tokens: int = 0
    num_keys: int = 0

    @classmethod
    def of(cls, plan: StepPlan) -> "StepSize":
        """Return the size of a step that is planned."""
        chunks = [part for part in plan.scheduled if len(part.token_ids) > 1]
        num_tokens = sum(len(part.token_ids) for part in chunks)
        num_keys = sum(
            len(part.token_ids) * (part.num_computed_tokens + part.context_len + 1) // 2
            for part in chunks
        )
        return cls(len(plan.scheduled) - len(chunks), num_tokens, num_keys)

    @property
    def kind(self) -> tuple[int, ...]:
        """The same for steps of about the same size."""
        return tuple(number.bit_length() for number in self.numbers)

    @property
    def numbers(self) -> tuple[int, int, int]:
        """All three."""
        return self.num_decodes, self.num_prompt_tokens, self.num_keys


class StepCost:
    """Predicts the seconds of decodes and of prompt tokens in a step."""

    def __init__(self) -> None:
        """Start without a step."""
        self._kinds: dict[tuple[int, ...], Row] = {}  # numbers and seconds of each, last seen last
        self._costs: Row | None = None  # worked out when asked for

    def observe(self, size: StepSize, seconds: float) -> None:
        """Take in a step, and its seconds from plan to sampled tokens."""
        known = self._kinds.pop(size.kind, None)
        if known is None:
            known = [*map(float, size.numbers), max(seconds, _LEAST_S)]
        self._kinds[size.kind] = known
        if len(self._kinds) > MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        new = (*size.numbers, max(min(seconds, _STALL * known[-1]), _LEAST_S))
        for index, value in enumerate(new):
            known[index] += _NEWS * (value - known[index])
        self._costs = None

    def decode_s(self, num_decodes: int) -> float:
        """Return the seconds of a step of so many decodes alone; 0 before any was seen.

        Where about as many were alone in a step, what they took counts, and the fit only for
        how many more or fewer they were.
        """
        fixed, decode, *_ = self._fitted()
        known = self._kinds.get(StepSize(num_decodes).kind)
        if known is None:
            return max(0.0, fixed + decode * num_decodes / _SCALES[1])
        return max(0.0, known[-1] + decode * (num_decodes - known[0]) / _SCALES[1])

    def token_s(self, num_keys: int) -> float:
        """Return what a prompt token that attends to so many adds; 0 before any was seen."""
        *_, token, key = self._fitted()
        return max(0.0, token / _SCALES[2] + max(0.0, key) * num_keys / _SCALES[3])

    def _fitted(self) -> Row:
        """Fit the kinds by least squares of relative errors."""
        if self._costs is None:
            products = [[0.0] * _NUM_COSTS for _ in range(_NUM_COSTS)]
            targets = [0.0] * _NUM_COSTS
            for *numbers, seconds in self._kinds.values():
                features = [
                    value / scale for value, scale in zip((1.0, *numbers), _SCALES, strict=True)
                ]
                for row, feature in enumerate(features):
                    targets[row] += feature / seconds
                    for column, other in enumerate(features):
                        products[row][column] += feature * other / seconds / seconds
            self._costs = _solve(products, targets)
        return self._costs


def _solve(products: list[Row], targets: Row) -> Row:
    """Solve the normal equations, a ridge on their diagonal, by Gaussian elimination."""
    rows = [[*row, target] for row, target in zip(products, targets, strict=True)]
    ridge = _RIDGE * (1.0 + sum(products[index][index] for index in range(_NUM_COSTS)))
    for index in range(_NUM_COSTS):
        rows[index][index] += ridge
    for pivot in range(_NUM_COSTS):
        for row in range(pivot + 1, _NUM_COSTS):
            factor = rows[row][pivot] / rows[pivot][pivot]
            for column in range(pivot, _NUM_COSTS + 1):
                rows[row][column] -= factor * rows[pivot][column]
    costs = [0.0] * _NUM_COSTS
    for row in reversed(range(_NUM_COSTS)):
        known = sum(rows[row][column] * costs[column] for column in range(row + 1, _NUM_COSTS))
        costs[row] = (rows[row][_NUM_COSTS] - known) / rows[row][row]
    return costs
