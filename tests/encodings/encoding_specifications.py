"""The settings that every conformance check runs on: each encoding of the table, and its variants."""

from __future__ import annotations

from wherefrom.encodings import Encoding, build

DYNAMIC = "scaling=dynamic,factor=2,original_max_length=16"
LONGROPE = "scaling=longrope,short_factors=1/1.1/1.3/1.6,long_factors=1/2/3/4,original_max_length=16,factor=4"

# setting -> the same encoding with another setting, which must not share state with it (None: no numeric setting)
SPECIFICATIONS: dict[str, str | None] = {
    "none": None,
    "sinusoidal": "sinusoidal:theta=500",
    "sinusoidal:layout=concatenated,amplitude=0.3": "sinusoidal:layout=concatenated",
    "learned": None,
    "relative-table": "relative-table:max_distance=4",
    "t5": "t5:buckets=16",
    "t5:bidirectional=true": "t5:bidirectional=true,max_distance=40",
    "alibi": "alibi:max_exponent=4",
    "alibi:slopes=geometric,form=symmetric": "alibi:form=symmetric,max_exponent=3",
    "alibi:slopes=published": "alibi",
    "alibi:form=key": "alibi:form=causal",
    "kerple": "kerple:form=power",
    "kerple:form=power": "kerple",
    "fire": "fire:steepness=0.7",
    "fire:threshold=6,hidden=5": "fire:hidden=5",
    "cope": "cope:max_count=3",
    "cope:max_count=5,shared_heads=false,scaled_gates=false": "cope:max_count=5,shared_heads=false",
    "deberta": "deberta:max_distance=3",
    "deberta:max_distance=4,position_to_content=false": "deberta:max_distance=4,content_to_position=false",
    "deberta:rescale=false": "deberta",
    "rope": "rope:theta=500000",
    "rope:pairing=interleaved": "rope",
    "rope:rotary_dim=4": "rope:rotary_dim=2",
    "rope:rotary_dim=4,pairing=interleaved": "rope:rotary_dim=4",
    "rope:rotary_dim=4,partial=proportional": "rope:rotary_dim=4",
    "rope:rotary_dim=4,partial=proportional,pairing=interleaved": "rope:pairing=interleaved",
    "rope:heads=0/2": "rope:heads=1",
    "rope:scaling=linear,factor=4": "rope:scaling=linear,factor=2",
    "rope:scaling=ntk,factor=4": "rope:scaling=ntk,factor=2",
    f"rope:{DYNAMIC}": "rope:scaling=dynamic,factor=3,original_max_length=8",
    f"rope:{DYNAMIC},length=40": f"rope:{DYNAMIC},length=30",
    "rope:scaling=yarn,factor=64,original_max_length=32": "rope:scaling=yarn,factor=4,original_max_length=32",
    "rope:scaling=yarn,factor=8,original_max_length=32,attention_factor=0.5,truncate=false": "rope",
    f"rope:{LONGROPE}": f"rope:{LONGROPE},attention_factor=1",
    f"rope:{LONGROPE},length=17": f"rope:{LONGROPE},length=16",
    "rope:scaling=llama3,factor=32,original_max_length=32": "rope:scaling=llama3,factor=8,original_max_length=32",
    "xpos": "xpos:gamma=0.2",
    "xpos:scale_base=128,pairing=half": "xpos:scale_base=100,pairing=half",
    "pope": "pope:theta=100",
    "pope:initial_phase=uniform": None,
    "mla": "mla:rotary_dim=2",
    "mla:shared_key=false,pairing=half": "mla:pairing=half",
    "published-mla": "published-mla:theta=100",
    "rope+sinusoidal": "rope",
    "rope:pairing=interleaved+sinusoidal:layout=concatenated": "rope:pairing=interleaved+sinusoidal",
    "learned:initial_std=0+published-mla": None,
    "alibi+t5+rope:theta=100": "alibi+rope:theta=100",
    "cope+rope": "cope:max_count=3+rope",
    "deberta+rope:heads=1": "deberta+rope:heads=2",
    "none+alibi": "none+kerple",
}
BIDIRECTIONAL = ["none", "alibi", "t5", "kerple", "fire", "deberta", "rope", "relative-table", "mla"]


def make(specification: str, causal: bool = True) -> Encoding:
    """A small encoding: three heads (not a power of two) of eight dimensions."""
    return build(specification, d_model=24, heads=3, head_dim=8, max_length=40, causal=causal)
