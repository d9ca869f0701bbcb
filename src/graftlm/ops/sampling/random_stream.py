"""The random numbers of sampling: a function of seed and position only, whatever the batch mates.

Counter-based, so nothing is kept between steps: the `position`-th output of SplitMix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014, with Stafford's variant 13 of the finalizer), whose
starting state is the finalized seed, so that neighbouring seeds do not share a stream. It does not know tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1), with 53 random bits, for each pair of seed and position."""
    state = _finalize(seeds + _GOLDEN)
    bits = _finalize(state + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> _S11).astype(np.float64) * 2.0**-53


def _finalize(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)
