from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

from agent.memory_tier.asking import Asking


def test_a_question_that_hangs_is_asked_once_and_waited_for_as_long_as_one_likes() -> None:
    asking, answer, asked = Asking(), threading.Event(), []

    def question() -> int:
        asked.append(1)
        assert answer.wait(20)
        return 7

    assert asking.within(0.01, "key", question) is None
    assert asking.is_under_way("key")
    assert asking.within(0.01, "key", question) is None
    assert asking.within(20, "another", lambda: 8) == 8
    answer.set()
    assert asking.within(20, "key", question) in {7, None}
    assert len(asked) <= 2
    asking.close()


def test_what_a_question_raises_is_the_answer() -> None:
    asking = Asking()
    with pytest.raises(ZeroDivisionError):
        asking.within(20, "key", lambda: 1 // 0)
    assert asking.within(20, "key", lambda: 1) == 1
    asking.close()


def test_more_questions_than_threads_are_all_answered() -> None:
    asking = Asking(most_threads=3)
    asked = [asking.begin(number, lambda number=number: number * number) for number in range(200)]
    wait(asked, timeout=20)
    assert [one.result() for one in asked] == [number * number for number in range(200)]
    asking.close()


def test_after_the_end_there_are_no_answers_and_nobody_waits() -> None:
    asking, answer = Asking(most_threads=1), threading.Event()
    running = asking.begin("running", lambda: answer.wait(20))
    waiting = asking.begin("waiting", lambda: 1)
    asking.close()
    assert waiting.cancelled()
    assert asking.within(20, "late", lambda: 1) is None
    answer.set()
    assert running.result(20)


def test_a_question_that_hangs_keeps_no_process_from_ending() -> None:
    code = "import threading; from agent.memory_tier.asking import Asking; Asking().within(0.1, 1, threading.Event().wait)"
    assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0
