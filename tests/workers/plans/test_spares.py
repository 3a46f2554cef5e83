from __future__ import annotations

import random
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.plans.spares import BARE, LEAST, MOST, USUAL, all_away, replacement, size

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
spans = st.timedeltas(timedelta(seconds=10), timedelta(days=5))


def test_a_small_job_on_sound_nodes_has_one_spare():
    found = size(30 * DAY, 5 * MINUTE, nodes=4)
    assert found.spares == 1
    assert found.bare < 0.001


def test_a_big_job_whose_replacements_take_an_hour_has_several():
    assert size(timedelta(hours=3), timedelta(hours=1), nodes=2000).spares == 3


def test_a_job_has_no_more_spares_than_nodes_and_says_that_it_would_want_more():
    found = size(MINUTE, 5 * MINUTE, nodes=3)
    assert found.spares == 3
    assert "a job of 3 nodes gets no more than 3" in found.why


def test_the_inputs_and_the_outcome_are_told_in_words():
    why = size(DAY, 5 * MINUTE, nodes=4).why
    assert why.startswith(
        "1 spare: one fault in 86400 s is to be expected, and its replacement takes 300 s; so 0.35 % of the faults"
    )


def test_what_a_replacement_takes_is_what_was_seen_or_else_the_usual():
    assert replacement([]) == USUAL
    assert replacement([MINUTE, 2 * MINUTE, DAY]) == 2 * MINUTE


@settings(max_examples=100)
@given(spans, spans, st.integers(1, 5000))
def test_no_fewer_spares_would_do_and_no_more_are_needed(mtbf, takes, nodes):
    found = size(mtbf, takes, nodes)
    most = max(LEAST, min(MOST, nodes))
    assert LEAST <= found.spares <= most
    assert found.bare <= BARE or found.spares == most
    assert found.spares == LEAST or all_away(found.spares - 1, takes / mtbf) > BARE


@settings(max_examples=60)
@given(spans, spans, spans, st.integers(1, 100))
def test_more_faults_or_slower_replacements_never_mean_fewer_spares(mtbf, takes, further, nodes):
    assert size(mtbf, takes + further, nodes).spares >= size(mtbf, takes, nodes).spares
    assert size(mtbf + further, takes, nodes).spares <= size(mtbf, takes, nodes).spares


@settings(max_examples=60)
@given(spans, spans, st.integers(1, 100))
def test_a_number_that_would_do_by_a_hair_is_kept_to_once_it_is_there(mtbf, takes, nodes):
    fresh = size(mtbf, takes, nodes).spares
    for had in range(fresh, MOST + 2):
        found = size(mtbf, takes, nodes, had).spares
        assert fresh <= found <= max(had, fresh)
        assert size(mtbf, takes, nodes, found).spares == found, "it comes to rest"


def test_the_chance_is_what_a_simulation_of_faults_and_replacements_finds():
    chance, now, back, bare = random.Random(4), 0.0, [], 0
    faults = 20_000
    for _ in range(faults):
        now += chance.expovariate(1 / 100)
        back = [at for at in back if at > now]
        bare += len(back) >= 2
        back.append(now + chance.uniform(0, 120))  # a fault without a spare is made up for just as fast
    assert abs(bare / faults - all_away(2, 0.6)) < 0.01
