"""What a step costs, learned from steps: seconds = fixed + per decode + per prompt token.

Steps of about the same decodes and tokens are one kind, and a kind is remembered until steps
of it are seen again: a server that has long read prompts in pieces of one size still knows
what others cost. Least squares over the kinds. Is told seconds and reads no clock.
"""

_NEWS = 0.25  # share of a new step in what its kind is remembered by
_STALL = 4.0  # a step that takes so many times what its kind took is a stall, and counts as that
_RIDGE = 1e-6  # of all there is: keeps what no kind tells apart near zero
_SCALES = (1.0, 16.0, 128.0)  # of one, decodes and tokens, so that the three are of one size
_LEAST_S = 1e-6  # less than any step takes

Row = list[float]


class StepCost:
    """Predicts the seconds of decodes and of prompt tokens in a step."""

    def __init__(self) -> None:
        """Start without a step."""
        self._kinds: dict[tuple[int, int], Row] = {}  # decodes, tokens and seconds of each
        self._costs: Row | None = None  # worked out when asked for

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Take in a step.

        Args:
            num_decodes: Answers it went on with.
            num_prompt_tokens: Tokens of prompts it read.
            seconds: From plan to sampled tokens.
        """
        kind = (num_decodes.bit_length(), num_prompt_tokens.bit_length())
        known = self._kinds.get(kind)
        if known is None:
            known = [float(num_decodes), float(num_prompt_tokens), max(seconds, _LEAST_S)]
            self._kinds[kind] = known
        new = (num_decodes, num_prompt_tokens, max(min(seconds, _STALL * known[2]), _LEAST_S))
        for index, value in enumerate(new):
            known[index] += _NEWS * (value - known[index])
        self._costs = None

    def decode_s(self, num_decodes: int) -> float:
        """Return the seconds of a step of so many decodes alone; 0 before any was seen."""
        fixed, decode, _ = self._fitted()
        return max(0.0, fixed + decode * num_decodes / _SCALES[1])

    def token_s(self) -> float:
        """Return what a prompt token adds; 0 before any was seen."""
        return max(0.0, self._fitted()[2] / _SCALES[2])

    def _fitted(self) -> Row:
        """Fit the kinds by least squares of relative errors."""
        if self._costs is None:
            products = [[0.0] * 3 for _ in range(3)]
            targets = [0.0] * 3
            for num_decodes, num_tokens, seconds in self._kinds.values():
                features = (1.0, num_decodes / _SCALES[1], num_tokens / _SCALES[2])
                for row, feature in enumerate(features):
                    targets[row] += feature / seconds
                    for column, other in enumerate(features):
                        products[row][column] += feature * other / seconds / seconds
            self._costs = _solve(products, targets)
        return self._costs


def _solve(products: list[Row], targets: Row) -> Row:
    """Solve the normal equations, a ridge on their diagonal, by Gaussian elimination."""
    rows = [[*row, target] for row, target in zip(products, targets, strict=True)]
    ridge = _RIDGE * (1.0 + sum(products[index][index] for index in range(3)))
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
