"""`python -m graftlm_model_files.convert CHECKPOINT OUT`: write a safetensors directory as weights.npz."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from graftlm_model_files.loader import WEIGHTS


def convert(checkpoint: Path, out: Path) -> Path:
    """Copy what is not weights, and put all tensors, which numpy must know the format of, into one archive."""
    import numpy as np
    from safetensors.numpy import load_file

    out.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for file in sorted(checkpoint.iterdir()):
        if file.suffix == ".safetensors":
            arrays.update(load_file(file))
        elif file.is_file() and not file.name.endswith(".index.json"):
            shutil.copy(file, out)
    np.savez(out / WEIGHTS, **arrays)
    return out


if __name__ == "__main__":
    print(convert(Path(sys.argv[1]), Path(sys.argv[2])))
