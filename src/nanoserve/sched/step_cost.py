"""What a step costs, learned from steps: seconds = fixed + per decode + per prompt token.

Least squares over the steps so far, older ones counting less and less. Pure arithmetic on
floats; is told seconds and reads no clock.
"""

_MEMORY = 0.97  # what a step still counts after the next one: some thirty steps in all
_RIDGE = 1e-4  # keeps what no step has told apart near zero
_STALL = 4.0  # a step that takes so many times what was expected is a stall, and counts as that
_SCALES = (1.0, 16.0, 128.0)  # of one, decodes and tokens, so that the three are of one size

Row = list[float]


class StepCost:
    """Predicts the seconds of decodes and of prompt tokens in a step."""

    def __init__(self) -> None:
        """Start without a step."""
        self._products = [[0.0] * 3 for _ in range(3)]
        self._targets = [0.0] * 3
        self._costs: Row | None = None

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Take in a step.

        Args:
            num_decodes: Answers it went on with.
            num_prompt_tokens: Tokens of prompts it read.
            seconds: From plan to sampled tokens.
        """
        features = _features(num_decodes, num_prompt_tokens)
        if self._costs is not None:
            seconds = min(seconds, _STALL * max(_dot(self._costs, features), 0.0) + 1e-3)
        for row, feature in enumerate(features):
            self._targets[row] = _MEMORY * self._targets[row] + feature * seconds
            for column, other in enumerate(features):
                kept = _MEMORY * self._products[row][column]
                self._products[row][column] = kept + feature * other
        self._costs = _solve(self._products, self._targets)

    def decode_s(self, num_decodes: int) -> float:
        """Return the seconds of a step of so many decodes alone; 0 before any was seen."""
        return 0.0 if self._costs is None else max(0.0, _dot(self._costs, _features(num_decodes, 0)))

    def token_s(self) -> float:
        """Return what a prompt token adds; 0 before any was seen."""
        return 0.0 if self._costs is None else max(0.0, self._costs[2] / _SCALES[2])


def _features(num_decodes: int, num_prompt_tokens: int) -> Row:
    return [1.0, num_decodes / _SCALES[1], num_prompt_tokens / _SCALES[2]]


def _dot(left: Row, right: Row) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _solve(products: list[Row], targets: Row) -> Row:
    """Solve the normal equations, a little ridge on their diagonal, by Gaussian elimination."""
    ridge = _RIDGE * (1.0 + products[0][0])
    rows = [[*row, target] for row, target in zip(products, targets, strict=True)]
    for index in range(3):
        rows[index][index] += ridge
    for pivot in range(3):
        for row in range(pivot + 1, 3):
            factor = rows[row][pivot] / rows[pivot][pivot]
            for column in range(pivot, 4):
                rows[row][column] -= factor * rows[pivot][column]
    costs = [0.0] * 3
    for row in (2, 1, 0):
        known = sum(rows[row][column] * costs[column] for column in range(row + 1, 3))
        costs[row] = (rows[row][3] - known) / rows[row][row]
    return costs
