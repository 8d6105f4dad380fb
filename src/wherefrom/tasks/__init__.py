"""Synthetic tasks, one file each: pure functions of (settings, seed)."""
