"""What a request costs, written out: bytes of a token layer kind by layer kind, states, blocks.

The numbers of a token and a state come from the same formulas as everywhere (`kv_layout`);
blocks of a request are written here after `kv_groups`, and a test holds the two together.
"""

from collections import Counter
from collections.abc import Iterator

from nanoserve.capacity.cache_cost import CacheCost, GroupedCost, SummedCost
from nanoserve.capacity.kv_groups import Bucket, CacheGroups
from nanoserve.plan.formula import Formula, Number, compute
from nanoserve.plan.kv_layout import (
    CacheFormat,
    Holding,
    attention_bytes_per_token,
    state_bytes_per_request,
    state_formula,
    token_formula,
)
from nanoserve.spec.model_shape import AttentionShape, ModelShape, StateShape
from nanoserve.units import ceil_div

_KINDS = {
    "full": "layers that keep all tokens",
    "mla": "layers that keep a latent",
    "sliding": "layers that slide",
    "chunked": "layers that attend in chunks",
    "cross": "layers over an encoder",
}


def layer_formulas(shape: ModelShape, cache: CacheFormat) -> Iterator[Formula]:
    """Yield the bytes of a token, and of a state, over all layers of each kind."""
    parts = [part for layer in shape.layers for part in (layer.attention, layer.cross) if part]
    for part, num_layers in Counter(parts).items():
        if part.shares_with is None:
            name = f"bytes of a token in {num_layers} {_KINDS[part.kind]}{_span(part)}"
            yield _times(token_formula(part, cache), num_layers, name)
    states = Counter(layer.state for layer in shape.layers if layer.state is not None)
    for state, num_layers in states.items():
        name = f"bytes of a request's state in {num_layers} recurrent layers"
        yield _times(state_formula(state, cache), num_layers, name)


def _span(part: AttentionShape) -> str:
    return "" if part.span is None else f" of {part.span:,} tokens"


def _times(one: Formula, num_layers: int, name: str) -> Formula:
    symbols: dict[str, Number] = {"layers": num_layers, **one.symbols}
    return compute(name, f"layers * ({one.expression})", "bytes", symbols)


def block_formulas(cost: CacheCost, num_tokens: int, longest: int) -> Iterator[Formula]:
    """Yield the bytes of a block and the blocks of a request, or the bytes of a request.

    Of an engine without groups it is the bytes; SGLang's cells are written out where they are
    counted.

    Args:
        cost: What requests cost in the pool.
        num_tokens: Final length of a request of the workload.
        longest: Longest request.
    """
    if isinstance(cost, SummedCost) and not cost.is_free:
        yield from (
            request_formula(cost, tokens) for tokens in dict.fromkeys((longest, num_tokens))
        )
    if not isinstance(cost, GroupedCost) or cost.is_free:
        return
    groups = cost.groups
    yield compute(
        "bytes of a block",
        "group_size * page_bytes",
        "bytes",
        {"group_size": groups.group_size, "page_bytes": groups.page_bytes},
    )
    yield blocks_formula(cost, longest, "admitted")
    yield blocks_formula(cost, num_tokens, "steady")


def request_formula(cost: SummedCost, num_tokens: int) -> Formula:
    """Return the bytes of a request while it decodes, summed over layers of each span.

    Args:
        cost: The layers, windows as long as the engine keeps them.
        num_tokens: Length of the request.
    """
    widths: Counter[str | int | None] = Counter()
    for layer in cost.shape.layers:
        for part in (layer.attention, layer.cross):
            if part is not None:
                span: str | int | None = part.kind if part.kind == "cross" else part.span
                widths[span] += attention_bytes_per_token(part, cost.cache)
    symbols: dict[str, Number] = {}
    terms = []
    for span, num_bytes in widths.items():
        name, held, more = _span_terms(span, num_tokens, cost.num_encoder_tokens)
        symbols |= {name: num_bytes} | more
        terms.append(f"{name} * {_in_blocks(held, cost.cache.block_size, symbols)}")
    state_bytes = cost.cache.num_states * state_bytes_per_request(cost.shape, cost.cache)
    if state_bytes:
        symbols |= {"state_bytes": state_bytes}
        terms.append("state_bytes")
    name = f"bytes of a request of {num_tokens:,} tokens"
    return compute(name, " + ".join(terms), "bytes", symbols)


def _span_terms(
    span: str | int | None, num_tokens: int, num_encoder_tokens: int
) -> tuple[str, str, dict[str, Number]]:
    """Return the name of a span's bytes, the tokens that are held of it, and their symbols."""
    if span == "cross":
        return "cross_bytes", "encoder_tokens", {"encoder_tokens": num_encoder_tokens}
    if span is None:
        return "full_bytes", "tokens", {"tokens": num_tokens}
    window = f"window_{span}"
    return f"bytes_{span}", f"min({window}, tokens)", {window: int(span), "tokens": num_tokens}


def _in_blocks(held: str, block_size: int, symbols: dict[str, Number]) -> str:
    if block_size == 1:
        return held
    symbols["block"] = block_size
    return f"ceil({held} / block) * block"


def blocks_formula(cost: GroupedCost, num_tokens: int, holding: Holding) -> Formula:
    """Return the blocks of a request, summed over groups of layers.

    Args:
        cost: The groups and what they were made for.
        num_tokens: Length of the request.
        holding: As it is admitted, or while it decodes.
    """
    terms = []
    symbols: dict[str, Number] = {"tokens": num_tokens}
    for number, bucket in enumerate(cost.groups.buckets, 1):
        pages, more = _pages(bucket, number, cost.cache, holding)
        symbols[f"groups_{number}"] = _num_groups(bucket, cost.groups)
        symbols |= more
        terms.append(f"groups_{number} * {pages}")
    if "encoder_tokens" in symbols:
        symbols["encoder_tokens"] = cost.num_encoder_tokens
    when = "as it is admitted" if holding == "admitted" else "while it decodes"
    name = f"blocks of a request of {num_tokens:,} tokens {when}"
    return compute(name, " + ".join(terms), "blocks", symbols)


def _num_groups(bucket: Bucket, groups: CacheGroups) -> int:
    return ceil_div(bucket.num_layers, groups.group_size)


def _pages(
    bucket: Bucket, number: int, cache: CacheFormat, holding: Holding
) -> tuple[str, dict[str, Number]]:
    """Return the expression of a layer's pages, and its symbols."""
    part = bucket.part
    if isinstance(part, StateShape):
        return "states", {"states": cache.num_states + cache.num_spec_tokens}
    block, span = f"block_{number}", f"span_{number}"
    symbols: dict[str, Number] = {block: bucket.block_size}
    if part.kind == "cross":
        return f"ceil(encoder_tokens / {block})", symbols | {"encoder_tokens": 0}
    if part.span is None:
        return f"ceil(tokens / {block})", symbols
    symbols[span] = part.span
    if holding == "steady":
        return f"ceil(min({span}, tokens) / {block})", symbols
    symbols["step"] = cache.max_num_batched_tokens
    if part.kind == "chunked":
        return f"ceil(min({span} + step, tokens) / {block})", symbols
    return f"(ceil(min({span} - 1 + step, tokens) / {block}) + 1)", symbols
