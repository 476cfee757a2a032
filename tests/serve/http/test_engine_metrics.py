"""What the engine counts, under the names that dashboards ask for."""

import pathlib
import re
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fdjax import SamplingParams
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import TOKENS, served
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "serving.md"
WANTED = {
    "num_requests_waiting": 3,
    "kv_cache_usage_perc": 0.25,
    "kv_cache_boundary_perc": 0.5,
    "kv_cache_fragmentation_perc": 0.125,
    "kv_cache_borrowed_perc": 0.0625,
    "num_preemptions_total": 5,
    "preemptions_for_room_total": 1,
    "pages_moved_total": 12,
    "prefix_cache_queries_total": 70,
    "prefix_cache_hits_total": 30,
    "softmax_query_heads_total": 2000,
    "softmax_query_heads_recomputed_total": 9,
}


async def test_each_number_has_its_name():
    with served() as server:
        text = (await server.get("/metrics")).text
    samples = {
        sample.name.removeprefix("fdjax:"): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    for name, value in WANTED.items():
        assert samples[name].labels == {"model_name": "tales"}
        assert samples[name].value == value, name
    labels = samples["cache_config_info"].labels
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("16", "80")
    assert samples["process_resident_memory_bytes"].value > 2**20


async def test_a_step_under_way_is_not_waited_for():
    hung = threading.Event()
    engine = FakeEngine(TOKENS, hung=hung)
    with served(engine) as server:
        async with server.client as client:
            streams = await server.llm.start(["Once"], SamplingParams(max_tokens=32))
            wait_until(lambda: engine.num_steps == 1)
            text = (await client.get("/metrics")).text
            hung.set()
            streams[0].close()
    assert 'fdjax:num_requests_running{model_name="tales"} 1.0' in text


async def test_the_docs_say_what_each_metric_is():
    with served() as server:
        text = (await server.get("/metrics")).text
    families = {f.name for f in text_string_to_metric_families(text)}
    ours = {name.removeprefix("fdjax:") for name in families if name[:6] == "fdjax:"}
    ours = {name for name in ours if not name.endswith("_created")}
    written = set(re.findall(r"`(\w+?)(?:_total)?`", DOCS.read_text()))
    assert len(ours) > 20 and ours <= written, ours - written
