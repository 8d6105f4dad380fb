"""The command line: parse, wire, print, exit code. Exit codes: 0 done, 1 a check failed, 2 bad input."""

from __future__ import annotations

import json as json_module
import os
import shlex
import sys
import traceback
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

import wherefrom
from wherefrom import cli_lab
from wherefrom.errors import BadInput, WherefromError
from wherefrom.progress import Progress
from wherefrom.workflows.options import TraceOptions
from wherefrom.workflows.split_options import SplitOptions

if TYPE_CHECKING:
    from wherefrom.models.hf import Decoder

INTERRUPTED = 130
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")
RUNS = "wherefrom-runs"
"""Where runs without --out go, in the working folder."""
_command: ContextVar[str] = ContextVar("wherefrom_command", default="")
"""The command line as given, for the manifest."""

app = App(
    name="wherefrom",
    help="Tells where a Transformer's sense of position comes from.",
    help_epilogue="Example: wherefrom trace smollm2 --edit bos=mean. With --debug any command shows tracebacks.",
    version=wherefrom.__version__,
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,  # `run` says what an interrupt means
)
lists = App(name="list", help="List what there is.")
app.command(lists)


@app.command
def trace(
    model: str,
    /,
    *,
    options: Annotated[TraceOptions, Parameter(name="*")] = TraceOptions(),  # noqa: B008
    json: bool = False,
) -> None:
    """Trace where absolute position comes from: the causal mask or the residual stream.

    Examples:

        wherefrom trace smollm2

        wherefrom trace smollm2 --edit bos=mean --edit window=64 --edit rope=ntk:4

        wherefrom trace ./my-checkpoint --text book.txt --length 1024 --inputs 32 --out results

        wherefrom trace smollm2 --json > leak.json

    Parameters
    ----------
    model
        smollm2 (packaged), a hub id, a local folder or a GGUF file.
    json
        Print a JSON summary and nothing else on standard output.
    """
    from wherefrom.workflows.trace import trace as run_trace

    progress = Progress()
    decoder = _loaded(model, options.dtype, options.device, options.trust_remote_code, progress)
    prompts = options.prompts(decoder)
    found = run_trace(
        decoder,
        prompts,
        options.edit,
        options.parsed_offsets(),
        options.parsed_ranges(),
        options.atlas,
        options.out,
        out_root=RUNS,
        batch=options.batch,
        progress=progress,
        command=_command.get(),
    )
    assert found.folder is not None
    from wherefrom.report import build_report

    page = build_report(found.folder)
    if json:
        print(json_module.dumps(found.summary(), allow_nan=False))
        return
    from wherefrom.report.text import print_summary

    print_summary(found.rows, found.manifest)
    print(f"\nRows:   {found.folder / 'rows.parquet'}\nReport: {page}")


@app.command
def split(
    model: str,
    /,
    *,
    options: Annotated[SplitOptions, Parameter(name="*")] = SplitOptions(),  # noqa: B008
    json: bool = False,
) -> None:
    """Split attention logits into content and position, per head, layer and rotary frequency band.

    Examples:

        wherefrom split smollm2

        wherefrom split smollm2 --length 128 --inputs 32

        wherefrom split ./my-checkpoint --text book.txt --edit rope=ntk:4 --out results

        wherefrom split smollm2 --json > split.json

    Parameters
    ----------
    model
        smollm2 (packaged), a hub id, a local folder or a GGUF file.
    json
        Print a JSON summary and nothing else on standard output.
    """
    from wherefrom.workflows.split import split as run_split

    progress = Progress()
    decoder = _loaded(model, options.dtype, options.device, options.trust_remote_code, progress)
    found = run_split(
        decoder,
        options.prompts(decoder),
        options.edit,
        options.rows,
        options.out,
        out_root=RUNS,
        batch=options.batch,
        progress=progress,
        command=_command.get(),
    )
    assert found.folder is not None
    from wherefrom.report import build_report

    page = build_report(found.folder)
    if json:
        print(json_module.dumps(found.summary(), allow_nan=False))
        return
    from wherefrom.report.split_text import print_split

    print_split(found.rows, found.manifest)
    print(f"\nRows:   {found.folder / 'rows.parquet'}\nReport: {page}")


@app.command
def facts(
    model: str,
    /,
    *,
    dtype: str = "float32",
    device: str = "auto",
    trust_remote_code: bool = False,
    json: bool = False,
) -> None:
    """What each layer does with position: rotation, mask, scale, sinks, slopes; and config keys without effect.

    Examples:

        wherefrom facts smollm2

        wherefrom facts ./my-checkpoint --json > facts.json

    Parameters
    ----------
    model
        smollm2 (packaged), a hub id, a local folder or a GGUF file.
    dtype
        Floating-point type of the model: float64, float32, bfloat16 or float16.
    device
        Where to run: auto, cpu or cuda.
    trust_remote_code
        Allow the checkpoint to run code of its own.
    json
        Print one JSON object and nothing else on standard output.
    """
    from wherefrom.workflows.facts import facts as read_facts

    Progress().say(f"Loading {model} ...")
    found = read_facts(model, dtype, device, trust_remote_code).to_dict()
    if json:
        print(json_module.dumps(found))
        return
    from wherefrom.report.facts_text import print_facts

    print_facts(found)


@app.command
def report(folder: Path, /, *more: Path, out: Path | None = None) -> None:
    """Write the HTML report of a finished run, or of several side by side.

    Examples:

        wherefrom report wherefrom-runs/smollm2-1a2b3c4d

        wherefrom report run-a run-b --out comparison.html

    Parameters
    ----------
    folder
        A run folder.
    more
        Further run folders to compare with.
    out
        Where to write the page. Default: report.html in the first folder.
    """
    from wherefrom.report import build_report

    print(build_report([folder, *more], out))


def _loaded(model: str, dtype: str, device: str, trust_remote_code: bool, progress: Progress) -> Decoder:
    """Load a model for a command, saying so."""
    from wherefrom.api import load
    from wherefrom.models.loading import cache_folder

    progress.say(f"Loading {model} ...")
    if model == "smollm2" and not (cache_folder() or Path("/nonexistent")).exists():
        progress.say("The first time, its GGUF file is converted; that takes about a minute.")
    return load(model, dtype, device, trust_remote_code=trust_remote_code)


@lists.command
def encodings() -> None:
    """Positional encodings, with their formulas and sources."""
    from wherefrom.encodings import list_encodings

    for entry in list_encodings():
        traits = [str(entry["kind"]), str(entry["reference"]), "learned" if entry["learned"] else "fixed"]
        if entry["max_length"] is not None:
            traits.append(f"at most {entry['max_length']} tokens")
        print(f"{entry['name']} ({', '.join(traits)})\n    {entry['summary']}\n    {entry['formula']}")
        print(f"    {entry['source']}")
        options = entry["options"]
        if isinstance(options, dict) and options:
            print("    options: " + ", ".join(f"{name}={value}" for name, value in options.items()))


@lists.command
def edits() -> None:
    """Edits that `wherefrom trace --edit` takes."""
    from wherefrom.capture.edits import EDITS

    for _, usage, what in EDITS.values():
        print(f"{usage:58} {what}")


cli_lab.register(app, lists)


def main() -> None:
    """Entry point of the command `wherefrom`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; a user's mistake is one sentence on standard error.

    `--debug` anywhere among the arguments shows the traceback as well.
    """
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    token = _command.set(shlex.join(["wherefrom", *arguments]))
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nInterrupted. Finished inputs are kept; the same command continues.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has closed it, e.g. `| head`. What is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        if debug:
            traceback.print_exc()
        print(f"wherefrom: {sentence}", file=sys.stderr)
        return 1 if isinstance(error, WherefromError) and not isinstance(error, BadInput) else 2
    finally:
        _command.reset(token)
    return 0


def _sentence(error: Exception) -> str | None:
    """What to tell the user, on one line; None for an error that is ours."""
    text = str(error)
    if isinstance(error, CycloptsError):
        # Options build themselves inside the parser, which wraps their own sentence: unwrap it.
        cause = error.__cause__ or error.__context__
        text = str(cause if isinstance(cause, WherefromError) else error)
        if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
            text = f"'{error.unused_tokens[0]}' is one argument too many; --help shows what this command takes."
    elif isinstance(error, MemoryError | RuntimeError) and not isinstance(error, WherefromError):
        if not isinstance(error, MemoryError) and not any(sign in text.lower() for sign in OUT_OF_MEMORY):
            return None
        text = "There is not enough memory for this run; use a smaller --batch, --length or --dtype."
    elif not isinstance(error, WherefromError):
        return None
    return " ".join(text.split())


if __name__ == "__main__":
    main()
