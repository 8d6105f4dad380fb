"""wherefrom: where a Transformer's sense of position comes from."""

__version__ = "0.1.0.dev0"
