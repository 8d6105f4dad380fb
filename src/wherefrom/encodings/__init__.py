"""Positional encodings as pure maths, one file each, and masks as index rules."""
