"""Where models come from and how they lie on disk: `folder://NAME`, and checkpoints as weights.npz."""
