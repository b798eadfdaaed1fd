"""Comparisons, searches and remedies as lines of text for a terminal. Knows no arithmetic."""

from collections.abc import Iterator, Sequence

from nanoserve.capacity.comparison import ComparedPlan, SavingsCompared, winners
from nanoserve.capacity.launch_command import command_notes
from nanoserve.capacity.plan_answer import PlanAnswer
from nanoserve.capacity.plan_search import Found, SearchAnswer, served_users
from nanoserve.capacity.remedies import Remedy
from nanoserve.plan.text_table import table_lines
from nanoserve.units import GIB

_HEADER = (
    "GPUs",
    "tp",
    "weights",
    "KV",
    "weights GiB",
    "pool GiB",
    "tokens",
    "requests",
    "decode ms",
    "verdict",
)


def compare_lines(rows: Sequence[ComparedPlan], savings: SavingsCompared | None) -> tuple[str, ...]:
    """Return a table of all combinations, the best of them, and which saving pays more."""
    table = [_HEADER, *map(_compared_row, rows)]
    plans = [row.plan for row in rows if row.plan is not None]
    lengths = {(plan.max_model_len, plan.choices.workload.p95) for plan in plans}
    return (
        *table_lines(table),
        "",
        *_legend(lengths, any(plan.query.num_replicas > 1 for plan in plans)),
        *dict.fromkeys(f"refused: {row.refusal}" for row in rows if row.plan is None),
        *_best_lines(rows),
        *([] if savings is None else _savings_lines(savings)),
    )


def remedy_lines(found: Sequence[Remedy]) -> tuple[str, ...]:
    """Return each change with what it does to the pool and to the requests that fit."""
    if not found:
        return ("no single change nor pair of changes tried makes it serve",)
    width = max(len(remedy.words) for remedy in found)
    return (
        "what would serve, each planned again:",
        *(
            f"  {remedy.words:<{width}}  pool {_signed(remedy.pool_delta)} GiB, "
            f"{remedy.plan.fit.p95.mid:,} requests at once; {remedy.price}"
            for remedy in found
        ),
    )


def search_lines(search: SearchAnswer) -> tuple[str, ...]:
    """Return each candidate that was planned, and the answer."""
    rows = [("candidate", "users", "pool GiB", "longest request", "verdict")]
    for one in search.candidates:
        plan = one.plan
        rows.append(
            (
                one.words,
                f"{served_users(plan):,}",
                f"{plan.pool.mid / GIB:.2f}",
                f"{plan.longest_fit:,}",
                _search_verdict(one),
            )
        )
    legend = "users are counted with the least pool that is likely, all copies together"
    return (*table_lines(rows), "", legend, "", *_search_answer(search))


def _search_verdict(one: Found) -> str:
    """Whether it is enough for the users asked for, not for those of a plan."""
    if one.is_enough:
        return "enough"
    return one.plan.verdict if one.plan.verdict == "does not load" else "too few"


def _search_answer(search: SearchAnswer) -> Iterator[str]:
    best = search.best
    users = f"{search.users:,} {'user' if search.users == 1 else 'users'}"
    if best is None:
        most = max((served_users(one.plan) for one in search.candidates), default=0)
        yield f"{search.wanted}: nothing tried serves {users} at once; the most is {most:,}"
        return
    figure = {
        "max-len": f"{best.figure:,} tokens for {users} at once",
        "gpus": f"{best.figure} {'GPU' if best.figure == 1 else 'GPUs'} for {users} at once",
        "precision": f"{best.words.split()[-1]} for {users} at once",
        "users": f"{best.figure:,} requests of {best.plan.choices.workload.p95:,} tokens at once",
    }
    yield f"{search.wanted}: {figure[search.wanted]}"
    yield from ("", f"  {search.command}", *_slot_notes(search, best), *_command_notes(best.plan))


def _slot_notes(search: SearchAnswer, best: Found) -> Iterator[str]:
    """Say where the command's slots are fewer than the users of its row, and why."""
    admitted = search.slots * best.plan.query.num_replicas
    fit = served_users(best.plan)
    if admitted < fit:
        why = "as asked" if search.wanted == "max-len" else "the slots that the pool is planned for"
        yield f"note: {fit:,} users fit; the command admits {admitted:,}, {why}"


def _compared_row(row: ComparedPlan) -> tuple[str, ...]:
    plan = row.plan
    name = _gpus(row)
    if plan is None:
        return (name, str(row.tp or "-"), row.weight_name, row.kv_name, *"-----", "refused")
    floor = plan.decode[0].seconds
    return (
        name,
        str(row.tp),
        row.weight_name,
        row.kv_name,
        f"{plan.weight_bytes / GIB:.2f}",
        f"{plan.pool.mid / GIB:.2f}",
        f"{max(0, plan.tokens.mid):,}",
        f"{row.requests:,}",
        "-" if floor is None else f"{1000 * floor:.1f}",
        plan.verdict,
    )


def _gpus(row: ComparedPlan) -> str:
    count = row.gpus.num_gpus
    return row.gpus.gpu.name if count == 1 else f"{count} x {row.gpus.gpu.name}"


def _label(row: ComparedPlan) -> str:
    return f"{_gpus(row)}, tp {row.tp or '-'}, {row.weight_name}, KV {row.kv_name}"


def _legend(lengths: set[tuple[int, int]], has_copies: bool) -> Iterator[str]:
    yield "GiB are of each GPU; decode ms is the floor of one request's step: bytes over bandwidth"
    if lengths:
        p95 = " or ".join(f"{length:,}" for length in sorted({one[1] for one in lengths}))
        yield f"requests are of {p95} tokens at once; fewer than 4 do not count as serving"
    if has_copies:
        yield "GPUs that tp does not use hold more copies: tokens are of one, requests of all"


def _best_lines(rows: Sequence[ComparedPlan]) -> Iterator[str]:
    best = next(winners(rows), None)
    if best is None or best.plan is None:
        yield "none of them serves"
        return
    yield f"most requests for each GPU: {_label(best)}"
    yield f"  {best.plan.command}"
    yield from _command_notes(best.plan)


def _command_notes(plan: PlanAnswer) -> Iterator[str]:
    """Yield what the command alone does not say."""
    copies = plan.query.num_replicas
    if copies > 1:
        where = "a machine" if plan.query.gpu.is_host else "GPUs"
        yield f"note: start it {copies} times, each on {where} of its own"
    yield from (f"note: {note}" for note in command_notes(plan.query))


def _savings_lines(savings: SavingsCompared) -> Iterator[str]:
    base, weights = savings.base, savings.weights
    yield ""
    gpu, count = base.query.gpu.name, base.query.num_gpus
    where = gpu if count == 1 else f"{count} x {gpu}"
    yield f"8-bit KV or 8-bit weights, of {max(0, base.tokens.mid):,} tokens now on {where}:"
    yield f"  8-bit KV adds {savings.kv_gain:,} tokens: each costs less of the same pool"
    yield (
        f"  {weights.choices.weight_format.name} weights add {savings.weights_gain:,}: "
        f"{savings.freed_bytes / GIB:.2f} GiB freed over what a token costs"
    )
    yield f"  more here: {savings.winner}{_break_even(savings)}"


def _break_even(savings: SavingsCompared) -> str:
    even = savings.break_even_bytes
    if even is None:
        return ": without a pool there is nothing that 8-bit KV could divide"
    return (
        f". Break-even: a pool of {even / GIB:.2f} GiB; this one has "
        f"{savings.base.pool.mid / GIB:.2f}, and with more the KV is worth more"
    )


def _signed(num_bytes: int) -> str:
    return f"{num_bytes / GIB:+.2f}"
