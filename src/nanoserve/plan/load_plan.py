"""What loading takes for a moment beside the weights it leaves: rows on their way into panels,
and one layer in float32 where inputs are measured for a fit to 4 bits.

Sizes of the pieces that `weights` works in are here, so that what is counted is what is taken.
The two are never held at once, and both are given back before the pool is allocated.
"""

from dataclasses import dataclass

from nanoserve.plan.weight_plan import PANEL_OUTPUTS, SCALE_BYTES, LinearFormat, WeightPlan
from nanoserve.plan.weight_plan import linear_sizes
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import MIB, round_up
