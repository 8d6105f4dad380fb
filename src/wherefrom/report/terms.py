"""Labels, meanings, formulas and colours of every metric: one table for text and charts."""

from __future__ import annotations

from dataclasses import dataclass

UNEDITED = "none"
"""The value of `edit` in rows of the unedited run."""

SINK_THRESHOLD = 0.3
"""Mean attention to key 0 from which a head counts as sink-reading."""


@dataclass(frozen=True, slots=True)
class Term:
    """A metric as the reader meets it."""

    label: str
    """A few words for axes, legends and table heads."""
    meaning: str
    """One clause, shown on hover and in tables."""


LEAK_TERMS: dict[str, Term] = {
    "attention_leak": Term("attention leak", "V(s − z): how much log-attention changes with absolute position"),
    "shape_leak": Term("shape", "V(s′): the profile over offsets changes with position"),
    "level_leak": Term("level", "V(z′): the softmax normaliser changes with position"),
    "mask": Term("mask", "C(z_M, z′): what the causal mask (or window) alone would do"),
    "first_token": Term("first token", "C(z_F, z′): what key 0 adds beyond an ordinary key at its offset"),
    "rest": Term("rest", "C(z′ − z_M − z_F, z′): the residual stream's hand on the normaliser"),
    "learned_sink": Term("learned sink", "C(z_S, z′): what the model's learned sink logit adds"),
    "residual": Term("residual stream", "shape + first token + rest (+ learned sink)"),
    "residual_share": Term("residual share", "residual stream ÷ attention leak"),
    "raw_logit_leak": Term("raw logits", "V(s), with the row's reference left in"),
    "raw_denominator_leak": Term("raw denominator", "V(z), with the row's reference left in"),
    "raw_interaction": Term("raw interaction", "−2 C(s, z)"),
    "count": Term("key count", "V(log n): what the number of visible keys alone would give"),
}

OTHER_TERMS: dict[str, Term] = {
    "sink_attention": Term("attention to key 0", "mean attention to the first key over queries from 32 on"),
    "value_norm_ratio": Term("value-norm ratio", "norm of the first token's value ÷ mean norm of the others"),
    "sink_constancy": Term("sink constancy", "cosine of the head's contribution from key 0 across inputs"),
    "learned_sink_share": Term("learned-sink share", "mean attention that goes to the learned sink logit"),
    "norm": Term("norm", "norm of the residual stream at position 0"),
    "norm_ratio": Term("norm ratio", "norm at position 0 ÷ mean norm at later positions"),
    "similarity": Term("similarity", "cosine of the stream at position 0 across inputs"),
}

SPLIT_TERMS: dict[str, Term] = {
    "toeplitz_share": Term("offset", "what the offset i − j alone explains (Toeplitz share)"),
    "absolute_share": Term("absolute", "what query and key positions explain beyond the offset"),
    "first_key_share": Term("(at key 0)", "the part of the absolute share that sits at key 0"),
    "content_share": Term("content", "what differs between inputs"),
    "positional_share": Term("position", "offset + absolute"),
    "content_content_share": Term("content · content", "query content with key content; holds the turned mean"),
    "content_position_share": Term("content · position", "query content with key position"),
    "position_content_share": Term("position · content", "query position with key content"),
    "position_position_share": Term("position · position", "query position with key position"),
    "turned_mean_share": Term("(turned mean)", "the mean query and mean key, turned by the rotation"),
    "band_share": Term("band, all parts", "the band's share of the head's logit variance"),
    "band_position_share": Term("position", "the band's share through position, beyond the turned mean"),
    "band_turned_mean_share": Term("turned mean", "the band's share through the mean query and mean key"),
    "band_content_share": Term("content", "the band's share through content"),
    "gram_norm": Term("Gram norm", "spectral norm of the content Gram matrix, nats"),
    "product_norm": Term("product norm", "spectral norm of kernel ∘ Gram matrix, nats"),
    "contraction_ratio": Term("norm ratio", "product norm ÷ Gram norm: below 1 the kernel contracts"),
    "gram_condition": Term("Gram condition", "condition number of the content Gram matrix"),
    "product_condition": Term("product condition", "condition number of kernel ∘ Gram matrix"),
    "condition_ratio": Term("condition ratio", "product condition ÷ Gram condition"),
    "gram_effective_rank": Term("Gram rank", "effective rank of the content Gram matrix"),
    "product_effective_rank": Term("product rank", "effective rank of kernel ∘ Gram matrix"),
    "rank_ratio": Term("rank ratio", "product rank ÷ Gram rank"),
    "kernel_norm": Term("kernel norm", "spectral norm of the Toeplitz kernel, mean over bands"),
    "kernel_effective_rank": Term("kernel rank", "effective rank of the Toeplitz kernel"),
}

TERMS: dict[str, Term] = LEAK_TERMS | OTHER_TERMS | SPLIT_TERMS

COMPONENTS: tuple[str, ...] = ("mask", "shape_leak", "rest", "first_token", "learned_sink")
"""The parts that sum to the attention leak, in stacking order from zero outwards."""

SPLIT_COLUMNS: tuple[str, ...] = (
    "attention_leak",
    "shape_leak",
    "level_leak",
    "mask",
    "first_token",
    "rest",
    "learned_sink",
    "residual_share",
)
RAW_COLUMNS: tuple[str, ...] = ("raw_logit_leak", "raw_denominator_leak", "raw_interaction", "count")

# Okabe and Ito's colour-blind safe set. The mask is the one blue: every other colour is the residual stream.
COMPONENT_COLOURS: dict[str, str] = {
    "mask": "#0072B2",
    "shape_leak": "#D55E00",
    "rest": "#E69F00",
    "first_token": "#CC79A7",
    "learned_sink": "#009E73",
}
SERIES_COLOURS: tuple[str, ...] = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#9A6B00")
INK = {"light": "#1d2733", "dark": "#e6e9ee"}

SIGNED_COLOURS = {
    "light": ("#08507d", "#62aed8", "#f6f6f4", "#f0a25c", "#a93f00"),
    "dark": ("#6cc4f5", "#1f6f9f", "#20262e", "#b3591a", "#ffb46b"),
}
"""Blue below zero, orange above, and the page's own neutral at zero."""
SHARE_COLOURS = {"light": ("#f6f6f4", "#7fbadb", "#08507d"), "dark": ("#20262e", "#1f6f9f", "#a5dcff")}


def label(metric: str) -> str:
    """The metric in words; metrics that are new here keep their name, with spaces."""
    term = TERMS.get(metric)
    return term.label if term else metric.replace("_", " ")


def meaning(metric: str) -> str:
    """One clause about the metric, or an empty string."""
    term = TERMS.get(metric)
    return term.meaning if term else ""
