from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory_tier.metrics import FAMILIES, Counts, Sample, render

LINE = re.compile(r'([a-z_]+)(?:\{([a-z]+)="((?:[^"\\\n]|\\["\\n])*)"\})? (\S+)')


def unescaped(text: str) -> str:
    return re.sub(r'\\(["\\n])', lambda found: "\n" if found[1] == "n" else found[1], text)


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_whatever_a_label_says_comes_out_as_it_went_in(text: str, value: float) -> None:
    name = "everstep_age_of_last_durable_step_seconds"
    *about, line, end = render([Sample(name, value, {"namespace": text})]).split("\n")
    assert end == ""
    assert [one.split(" ")[:3] for one in about] == [["#", "HELP", name], ["#", "TYPE", name]]
    found = LINE.fullmatch(line)
    assert found is not None
    assert (found[1], found[2], unescaped(found[3]), float(found[4])) == (name, "namespace", text, value)


def test_a_family_is_introduced_once_and_its_samples_stand_together() -> None:
    counts = Counts()
    counts.add("everstep_tier_requests_total", route="shard", status="200")
    counts.add("everstep_tier_requests_total", route="shard", status="404")
    counts.add("everstep_tier_requests_total", 2, status="200", route="shard")
    told = render([Sample("everstep_tier_used_bytes", 1 << 40), *counts.samples(), Sample("everstep_tier_allocated_bytes", 0.5)])
    assert [line for line in told.splitlines() if not line.startswith("# HELP")] == [
        "# TYPE everstep_tier_allocated_bytes gauge",
        "everstep_tier_allocated_bytes 0.5",
        "# TYPE everstep_tier_used_bytes gauge",
        "everstep_tier_used_bytes 1099511627776",
        "# TYPE everstep_tier_requests_total counter",
        'everstep_tier_requests_total{route="shard",status="200"} 3',
        'everstep_tier_requests_total{route="shard",status="404"} 1',
    ]


def test_numbers_that_are_none_are_written_as_the_format_says() -> None:
    told = render([Sample("everstep_tier_used_bytes", value) for value in (float("nan"), float("inf"), float("-inf"))])
    assert [line.split(" ")[1] for line in told.splitlines() if line[0] != "#"] == ["+Inf", "-Inf", "NaN"]


def test_a_sample_of_no_known_family_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError):
        render([Sample("everstep_unheard_of", 1)])
    with pytest.raises(KeyError):
        Counts().add("everstep_unheard_of")


def test_names_of_families_follow_the_conventions() -> None:
    for name, (kind, words) in FAMILIES.items():
        assert re.fullmatch(r"everstep_[a-z_]+", name)
        assert (kind == "counter") == name.endswith("_total")
        assert words.endswith(".")
