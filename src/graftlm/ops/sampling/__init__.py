"""Chooses each request's next token from the model's logits, for a whole batch at once.

It does not know requests: a row is a row of logits and of the parameters that go with it.
"""

from graftlm.ops.sampling.adjust import AdjustLogits
from graftlm.ops.sampling.choose import ChooseTokens
from graftlm.ops.sampling.inputs import LogitEntries, PenaltyEntries, SamplingInputs
from graftlm.ops.sampling.logprobs import LogprobTensors, RankedLogprobs
from graftlm.ops.sampling.random_stream import uniform
from graftlm.ops.sampling.sampler import Sampled, Sampler

__all__ = [
    "AdjustLogits",
    "ChooseTokens",
    "LogitEntries",
    "LogprobTensors",
    "PenaltyEntries",
    "RankedLogprobs",
    "Sampled",
    "Sampler",
    "SamplingInputs",
    "uniform",
]
