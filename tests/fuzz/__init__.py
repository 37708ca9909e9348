"""Hostile files: valid ones, mutated, must be read or refused in one line."""
