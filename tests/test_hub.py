"""Hub ids: one quick question first, and a clear sentence for every answer that is not the model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from checkpoints import refusal, saved
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

CODE = """
import sys, wherefrom as wf
for name in sys.argv[1:]:
    try: said = "layers: %d" % len(wf.load(name).blocks)
    except wf.BadInput as error: said = str(error)
    print(said)
"""


@pytest.mark.parametrize("network", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_without_a_network_the_cache_still_loads_and_the_rest_is_refused(
    network: dict[str, str], tmp_path: Path
) -> None:
    """A closed port stands for "no network". Typing errors are helped."""
    cached = tmp_path / "hub" / "models--someone--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    saved(cached / "snapshots" / ("0" * 40))
    names = ["someone/tiny", "nobody-here/no-model", "smolm2", "./no/folder", "/no/folder"]
    environment = {**os.environ, "HF_HOME": str(tmp_path), **network}
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run([sys.executable, "-c", CODE, *names], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = done.stdout.splitlines()
    assert said[0] == "layers: 2"
    assert "nobody-here/no-model" in said[1]
    assert "hub" in said[1]
    assert said[2].endswith("did you mean smollm2?")
    assert all("There is no file or folder" in sentence for sentence in said[3:])


def answer(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    def model_info(*_: Any, **__: Any) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


RESPONSE: Any = SimpleNamespace(status_code=503, headers={}, request=None, text="", url="")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (GatedRepoError("x", response=RESPONSE), "is gated"),
        (RepositoryNotFoundError("x", response=RESPONSE), "knows no such model"),
        (HfHubHTTPError("x", response=RESPONSE), "HTTP 503"),
        (TimeoutError("x"), "cannot be reached (TimeoutError)"),
        (SimpleNamespace(siblings=[SimpleNamespace(rfilename="pytorch_model.bin")]), "no safetensors weights"),
    ],
)
def test_what_the_hub_answers_is_said(given: Any, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, given)
    assert expected in refusal("nobody-here/no-model")
