"""The `graftlm` command: one file for each sub-command, of which only the chosen one is imported."""
