"""The one row type: every number that leaves an analysis is one of these."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, tidy: what, how much, how sure, and where.

    `None` in `layer`, `head`, `offset` or `query_range` means "averaged over", and in `token` "not about one token".
    """

    analysis: str
    """Which analysis measured it: `leak`, `sinks`, `first_token`, `atlas`, `split`, `bands`, `spectra`, `readout`,
    `training`, `heads`, `deposit`, `seeds`."""
    metric: str
    """The field's name of the quantity, e.g. `shape_leak`."""
    value: float
    """The estimate, in `unit`. Variances may be slightly negative; they are never clipped."""
    unit: str
    """`nats2`, `nats`, `share`, `norm`, `cosine`, `tokens`, `radians`, `ratio`."""
    n: int
    """Independent inputs behind the estimate."""
    stderr: float | None = None
    """Standard error in `unit` (delete-one-group jackknife unless the analysis says otherwise); None where exact."""
    edit: str = "none"
    """The edit of the run, `none` for the unedited one."""
    layer: int | None = None
    """Layer index from 0; None: averaged over layers."""
    head: int | None = None
    """Query-head index from 0; None: averaged over heads."""
    offset: int | None = None
    """Offset i - j in tokens; None: averaged over the chosen offsets."""
    query_range: str | None = None
    """Half-open interval of query positions, e.g. `32:64`; None: not tied to one."""
    token: int | None = None
    """Token id, for rows about one token of the vocabulary."""
    band: int | None = None
    """Rotary frequency band, fastest first from 0, for rows about one."""
    step: int | None = None
    """Training step after which it was measured; None: not a matter of training."""
    length: int | None = None
    """Length of the inputs in tokens, for rows about one length."""


ROW_COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Row))
