"""Measurements that compare graftlm with others; run with `make bench`."""
