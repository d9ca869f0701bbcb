"""A source and a loader whose module imports torch, which the front end must not."""

from __future__ import annotations

import torch
from wrong_loaders import Sound as SoundLoader
from wrong_sources import Sound as SoundSource


class TorchSource(SoundSource):
    place = torch.device("cpu")


class TorchLoader(SoundLoader):
    place = torch.device("cpu")
