"""One quick question to the hub before anything is downloaded, so that a missing network or model is a clear sentence.

Loading straight away would retry for half a minute without a network and then name only the last of its failures.
"""

from __future__ import annotations

import re

from wherefrom.errors import BadInput
from wherefrom.suggest import suggestion

TIMEOUT = 10.0
"""Seconds to wait for the hub's answer."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def ask_hub(source: str) -> bool:
    """Whether the hub answers for the model `source`; False: it does not, but its cache here holds the model.

    Raises BadInput, with the reason, where neither can give it.
    """
    if not HUB_ID.fullmatch(source):
        raise BadInput(f"There is no file or folder '{source}', and it is not a hub id either; check the path.")
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        found = HfApi().model_info(source, timeout=TIMEOUT)
    except Exception as error:  # the transport's own errors differ between versions of the hub's client
        if isinstance(try_to_load_from_cache(source, "config.json"), str):
            return False
        raise BadInput(_reason(source, error)) from error
    files = [sibling.rfilename for sibling in found.siblings or []]
    if files and not any(name.endswith(".safetensors") for name in files):
        raise BadInput(
            f"The model '{source}' has no safetensors weights on the hub; other weight files can run code when they "
            "are read, so they are not loaded."
        )
    return True


def _reason(source: str, error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    end = suggestion(source, ["smollm2"]) or "."
    if isinstance(error, GatedRepoError):
        return f"The model '{source}' is gated; accept its terms on the hub and log in there first."
    if isinstance(error, RepositoryNotFoundError):
        return f"There is no folder '{source}', and the hub knows no such model, or not for you{end}"
    if isinstance(error, OfflineModeIsEnabled):
        return f"There is no folder '{source}', the hub is off (HF_HUB_OFFLINE), and its cache lacks that model{end}"
    if isinstance(error, HfHubHTTPError):
        status = getattr(getattr(error, "response", None), "status_code", "no status")
        return f"The hub did not give the model '{source}' (HTTP {status}); try again later{end}"
    return (
        f"There is no folder '{source}', and the hub cannot be reached ({type(error).__name__}); check the name and "
        f"the network, or use smollm2, which is packaged{end}"
    )
