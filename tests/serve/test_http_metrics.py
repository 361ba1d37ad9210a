"""``/metrics`` over HTTP, and which answers are counted."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import aiohttp
import pytest
from fake_transport import FakeTransport
from http_host import Serve
from prometheus_client.parser import text_string_to_metric_families

from radixray.errors import EngineError, InvalidRequestError
from radixray.metrics.reports import (
    ActorReport,
    DeploymentReport,
    EngineMetrics,
    SchedulerReport,
)
from radixray.reports import EngineStats
from radixray.serve import metrics
from radixray.serve.app import build, build_app
from radixray.tokenizer.tokenizer import Tokenizer

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"
BODY = {"model": "smollm2-135m", "prompt": "Hi", "max_tokens": 3}


class Meeting:
    """What the scheduler actor keeps for all processes."""

    def __init__(self) -> None:
        self.shared: dict[str, dict[str, int]] = {}


class MeasuredTransport(FakeTransport):
    def __init__(self, tokenizer: Tokenizer, meeting: Meeting) -> None:
        super().__init__(tokenizer)
        self._meeting = meeting

    async def measure(self) -> DeploymentReport:
        report = ActorReport(
            stats=EngineStats(running=2),
            engine=EngineMetrics(finished={"stop": 1}),
            queued={0: 1},
            page_size=1,
            context_length=64,
            pages_evictable=0,
        )
        scheduler = SchedulerReport(
            placements={"m-0": {"load": 1}}, shared={**self._meeting.shared}
        )
        return DeploymentReport(
            model="smollm2-135m", actors={"m-0": report, "m-1": None}, scheduler=scheduler
        )

    async def share(self, process: str, counts: dict[str, int]) -> None:
        self._meeting.shared[process] = {**counts}


@pytest.fixture
def measured(tokenizer: Tokenizer) -> MeasuredTransport:
    return MeasuredTransport(tokenizer, Meeting())


async def start(serve: Serve, transport: FakeTransport, api_key: str | None = None) -> str:
    async def connect() -> FakeTransport:
        return transport

    return await serve(build_app(connect, api_key=api_key))


async def page_of(http: aiohttp.ClientSession) -> str:
    async with http.get("/metrics") as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return await response.text()


def answers(page: str) -> dict[tuple[str, str, str], float]:
    return {
        (s.labels["method"], s.labels["route"], s.labels["status"]): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
        if s.name == "radixray:http_requests_total"
    }


async def test_answers_are_counted(serve: Serve, measured: MeasuredTransport) -> None:
    url = await start(serve, measured)
    async with aiohttp.ClientSession(base_url=url) as http:
        for body in (BODY, BODY | {"stream": True}, BODY | {"max_tokens": -1}):
            await (await http.post("/v1/completions", json=body)).read()
        measured.error, measured.fail_after = EngineError("broken"), 0
        await (await http.post("/v1/completions", json=BODY)).read()
        await (await http.get("/v1/models/smollm2-135m")).read()
        await (await http.get("/v1/models/none")).read()
        for path in ("/secret-7", "/secret-8"):
            await (await http.get(path)).read()
        await (await http.request("PURGE", "/v1/models")).read()
        found = answers(await page_of(http))
    assert found == {
        ("POST", "/v1/completions", "200"): 2,
        ("POST", "/v1/completions", "400"): 1,
        ("POST", "/v1/completions", "500"): 1,
        ("GET", "/v1/models/{id:path}", "200"): 1,
        ("GET", "/v1/models/{id:path}", "404"): 1,
        ("GET", "other", "404"): 2,
        ("other", "/v1/models", "405"): 1,
    }


async def test_one_process_shows_what_another_counted(
    serve: Serve, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SHARE_WITHIN_S", 0.01)
    meeting = Meeting()
    for expected in (1, 2, 3):  # each is a process of its own to the counts
        url = await start(serve, MeasuredTransport(tokenizer, meeting))
        async with aiohttp.ClientSession(base_url=url) as http:
            await (await http.post("/v1/completions", json=BODY)).read()
        async with asyncio.timeout(5):
            while len(meeting.shared) < expected:
                await asyncio.sleep(0.01)
    async with aiohttp.ClientSession(base_url=url) as http:
        assert answers(await page_of(http))["POST", "/v1/completions", "200"] == 3


async def test_a_key_is_wanted_and_the_refused_count(
    serve: Serve, measured: MeasuredTransport
) -> None:
    url = await start(serve, measured, api_key="secret")
    async with aiohttp.ClientSession(base_url=url) as http:
        async with http.get("/metrics") as response:
            assert response.status == 401
        await (await http.get("/nothing")).read()
    headers = {"Authorization": "Bearer secret"}
    async with aiohttp.ClientSession(base_url=url, headers=headers) as http:
        page = await page_of(http)
    assert answers(page) == {("GET", "/metrics", "401"): 1, ("GET", "other", "401"): 1}
    assert 'radixray:actor_up{model_name="smollm2-135m",actor="m-1"} 0.0' in page


async def test_where_nothing_is_counted(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics") as response:
        assert response.status == 503
        assert "nothing is counted" in (await response.json())["error"]["message"]


async def test_the_dashboard_asks_for_what_there_is(
    serve: Serve, measured: MeasuredTransport
) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    names = {name for expr in asked for name in re.findall(r"radixray:\w+", expr)}
    assert len(names) > 20
    url = await start(serve, measured)
    async with aiohttp.ClientSession(base_url=url) as http:
        await (await http.get("/health")).read()
        page = await page_of(http)
    assert (
        not names
        - set(re.findall(r"^(radixray:\w+)\{", page, re.MULTILINE))
        - {"radixray:queue_by_priority"}
    )


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({}, "allow_unauthenticated"),
        ({"allow_unauthenticated": "false"}, "allow_unauthenticated"),
        ({"allow_unauthenticated": "perhaps"}, "allow_unauthenticated"),
        ({"modle": "x"}, "modle"),
        ({"max_num_seqs": "many"}, "max_num_seqs"),
        ({"max_num_seqs": "0"}, "max_num_seqs"),
        ({"dtype": "float8"}, "dtype"),
        ({"model_actors": -1}, "model_actors"),
        ({"replicas": 0}, "replicas"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"api_key": "secret"}, "api_key"),
    ],
    ids=str,
)
def test_arguments_of_the_serve_application(
    arguments: dict[str, object], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RADIXRAY_API_KEY", "RADIXRAY_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidRequestError) as caught:
        build(arguments)
    assert caught.value.param == param


def test_a_key_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXRAY_API_KEY", "secret")
    monkeypatch.delenv("RADIXRAY_API_KEY_FILE", raising=False)
    assert build({"model_actors": "2", "prefix_cache": "false", "max_total_tokens": None})
