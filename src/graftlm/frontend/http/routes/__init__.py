"""One file for each group of routes; each offers a `router`."""
