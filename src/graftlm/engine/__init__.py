"""Configures once, then turns: schedule, execute, update; and carries requests between front end and core."""
