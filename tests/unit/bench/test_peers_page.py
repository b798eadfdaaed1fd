"""The page of benchmarks: medians over rounds, with losses and failures."""

from typing import Any

from bench.peers.page import render


def record(peer: str, weights: str, number: int, rate: float, **more: Any) -> dict[str, Any]:
    """Return one round of a peer."""
    figures = {"c=1": {"output_tokens_per_s": rate, "itl_p50_ms": 1.0, "itl_p99_ms": 2.0}, **more}
    return {
        "peer": peer,
        "weights": weights,
        "round": number,
        "date": "2026-11-29",
        "machine": "a machine",
        "version": "1.0",
        "command": f"{peer} serve",
        "figures": figures,
    }


def test_rates_are_medians_over_rounds_in_the_order_of_weights() -> None:
    """Peers of one class stand together."""
    records = [
        record("other-q4", "4-bit", 1, 5.0),
        *(
            record("other", "bf16", number, rate)
            for number, rate in ((1, 10.0), (2, 90.0), (3, 20.0))
        ),
    ]
    lines = render(records).splitlines()
    rows = [line for line in lines if line.startswith(("| other |", "| other-q4 |"))]

    assert rows[0].startswith("| other | bf16 | 20.0 |")
    assert rows[1].startswith("| other-q4 | 4-bit | 5.0 (1 of 3) |")


def test_losses_are_shown_as_ratios() -> None:
    """The ratio is of our best over the best other of its class."""
    records = [
        record("nanoserve-bf16", "bf16", 1, 50.0),
        record("slow", "bf16", 1, 20.0),
        record("fast", "bf16", 1, 100.0),
    ]

    assert "| bf16 | 0.50 |" in render(records)


def test_failures_and_short_answers_are_named() -> None:
    """With their round; a peer that did not start has no figures."""
    failed = record("broken", "bf16", 2, 1.0, start={"error": "first\nlast line of its log"})
    early = record("early", "bf16", 1, 1.0)
    early["figures"]["c=1"] |= {"num_ended_early": 3, "others_cpu_fraction": 0.5}
    early["note"] = "before the restart"
    page = render([failed, early])

    assert "- broken, round 2, start: last line of its log" in page
    assert "- early, round 1: before the restart" in page
    assert "- early, round 1, c=1: 3 ended early" in page
    assert "- early, round 1, c=1: disturbed, other processes took 50 % of a core" in page


def test_long_prompts_have_a_table_only_where_they_were_measured() -> None:
    """Ratios of interference and of cached prefixes are in it."""
    measured = record(
        "a",
        "bf16",
        1,
        1.0,
        interference={"quiet_itl_p99_ms": 20.0, "disturbed_itl_p99_ms": 50.0},
        prefix={"cold_ms": 400.0, "cached_ms": 40.0},
    )

    assert "| - | 400 ms | 40 ms | 0.10 | 20.0 ms | 50.0 ms | 2.50 |" in render([measured])
    assert "interference" not in render([record("a", "bf16", 1, 1.0)])


def test_a_figure_of_fewer_rounds_says_so() -> None:
    """A round that failed is in no figure; one that was taken again is."""
    records = [record("a", "bf16", number, 10.0 * number) for number in (1, 2, 3)]
    records[2]["figures"]["c=1"] = {"error": "the server died"}
    records[2]["taken_again_after"] = "c=1: the server died before"
    whole = [record("b", "bf16", number, 1.0) for number in (1, 2, 3)]
    page = render([*records, *whole])

    assert "Rounds: 3." in page
    assert "| a | bf16 | 15.0 (2 of 3) |" in page
    assert "| a | 1.0 / 2.0 (2 of 3) |" in page
    assert "| b | bf16 | 1.0 |" in page
    assert "- a, round 3: taken again after c=1: the server died before" in page
    assert "- a, round 3, c=1: the server died" in page
