"""How long the door takes. Measured, not judged: run with ``-m bench -s``."""

from __future__ import annotations

import json
import statistics
import time

import httpx
import pytest

from tests.live import ApiProcess, Place, Work


@pytest.mark.bench
@pytest.mark.parametrize("path", ["beat", "reports"])
def test_how_soon_the_door_answers(api_process: ApiProcess, place: Place, work: Work, path: str):
    token = api_process.post("/agent/v1/register", place.registration()).json()["node_token"]
    taken = []
    with httpx.Client(base_url=api_process.url, headers={"authorization": f"Bearer {token}"}) as client:
        for number in range(1, 501):
            report = {"kind": "broken", "job": work.job_id, "generation": 1, "process": work.process_id, "message": "m", "at": 1.0}
            body = {"boot": "boot-a", "sequence": number}
            if path == "reports":
                body = {"boot": "boot-a", "reports": [{"sequence": number, "report": report}]}
            began = time.perf_counter()
            assert client.post(f"/agent/v1/{path}", content=json.dumps(body)).status_code == 200
            taken.append((time.perf_counter() - began) * 1e3)
    quantiles = statistics.quantiles(taken, n=100)
    print(f"\n{path}: median {quantiles[49]:.2f} ms, 99th percentile {quantiles[98]:.2f} ms")
