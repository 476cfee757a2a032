"""What `deploy/` names is there: metrics, paths, options and times."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fdjax.cli.app import app
from fdjax.serve.http.limits import Limits
from tests.support.http_server import served

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "fdjax.json").read_text())
MARGIN_S = 15  # docs/serving.md: what a supervisor gives beyond the drain


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _objects() -> dict[str, Any]:
    found = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {one["kind"]: one for one in found}


def _compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def _unit() -> dict[str, str]:
    lines = (DEPLOY / "fdjax.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))


def _commands() -> dict[str, list[str]]:
    """What each of them runs, from `serve` on."""
    pod = _objects()["Deployment"]["spec"]["template"]["spec"]
    unit = shlex.split(_unit()["ExecStart"])
    return {
        "kubernetes": pod["containers"][0]["args"],
        "compose": shlex.split(_compose()["fdjax"]["command"]),
        "systemd": unit[unit.index("serve") :],
    }


def _drain_s(command: list[str]) -> int:
    (seconds,) = re.findall(r"--drain-seconds[= ](\d+)", " ".join(command))
    return int(seconds)


@pytest.mark.anyio
async def test_the_dashboard_asks_for_metrics_that_exist():
    with served() as server:
        text = (await server.get("/metrics")).text
    families = [*text_string_to_metric_families(text)]
    known = {family.name for family in families}
    # Those that have not been counted yet have no samples.
    suffixes = ("_total", "_bucket", "_sum", "_count", "")
    names = {name + suffix for name in known for suffix in suffixes}
    asked = [target["expr"] for one in DASHBOARD["panels"] for target in one["targets"]]
    asked.append(DASHBOARD["templating"]["list"][0]["query"])
    for expression in asked:
        found = re.findall(r"fdjax:\w+", expression)
        assert found, expression
        assert {*found} <= names, expression
    assert all('model_name=~"$model"' in expression for expression in asked[:-1])


def test_panels_do_not_overlap():
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24
        places |= cells


@pytest.mark.parametrize("name", ["kubernetes", "compose", "systemd"])
def test_options_are_those_of_serve(name: str):
    serve = typer.main.get_command(app).commands["serve"]  # pyright: ignore[reportAttributeAccessIssue]  (a group)
    known = {option for parameter in serve.params for option in parameter.opts}
    command = _commands()[name]
    assert command[0] == "serve"
    used = {word.partition("=")[0] for word in command if word.startswith("--")}
    assert used <= known


def test_supervisors_wait_for_the_drain():
    commands = _commands()
    pod = _objects()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    wanted = _drain_s(commands["kubernetes"]) + MARGIN_S + pause
    assert pod["terminationGracePeriodSeconds"] == wanted
    grace = _compose()["fdjax"]["stop_grace_period"]
    assert grace == f"{_drain_s(commands['compose']) + MARGIN_S}s"
    unit = _unit()
    assert int(unit["TimeoutStopSec"]) == _drain_s(commands["systemd"]) + MARGIN_S


@pytest.mark.anyio
async def test_probes_ask_for_paths_that_answer():
    (container,) = _objects()["Deployment"]["spec"]["template"]["spec"]["containers"]
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    paths = {container[probe]["httpGet"]["path"] for probe in probes}
    (checked,) = re.findall(r":8000(/\S+?)'", (DEPLOY / "Dockerfile").read_text())
    with served() as server:
        for path in {*paths, checked}:
            assert (await server.get(path)).status_code == 200, path


def test_the_manifest_fits_together():
    objects = _objects()
    template = objects["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert objects["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    (container,) = template["spec"]["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}
    claim = template["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == objects["PersistentVolumeClaim"]["metadata"]["name"]


@pytest.mark.anyio
async def test_the_server_behind_nginx_answers_to_the_names_it_is_asked_by():
    """The tutorial's, and for `/metrics` that of `proxy_pass`."""
    site = (DEPLOY / "nginx.conf").read_text()
    (name,) = re.findall(r"server_name (\S+);", site)
    to = re.findall(r"proxy_pass http://(\S+);", site)
    tutorial = (ROOT / "docs" / "tutorials" / "nginx.md").read_text()
    allowed = re.findall(r"--allowed-hosts (\S+)", tutorial)
    with served(allowed_hosts=allowed) as server:
        for host in (name, *to):
            answer = await server.get("/metrics", headers={"host": host})
            assert answer.status_code == 200, host
        answer = await server.get("/metrics", headers={"host": "other.example.com"})
        assert answer.status_code == 421


def test_the_tutorial_tells_what_is_in_the_file_for_nginx():
    site = (DEPLOY / "nginx.conf").read_text()
    tutorial = (ROOT / "docs" / "tutorials" / "nginx.md").read_text()
    there, _, elsewhere = tutorial.partition("Two things are not in that file")
    named = re.findall(r"^\* `((?:proxy|client)_[^`]+)`", there, re.MULTILINE)
    assert len(named) == 4
    assert all(f"{directive};" in site for directive in named)
    assert "worker_connections" in elsewhere
    assert not re.search(r"^\s*(?:worker_connections|limit_conn)", site, re.MULTILINE)


def test_nginx_takes_the_bodies_that_the_server_takes():
    """What is too long is answered by the server, in JSON."""
    site = (DEPLOY / "nginx.conf").read_text()
    (mebibytes,) = re.findall(r"client_max_body_size (\d+)m;", site)
    assert int(mebibytes) << 20 > Limits().body_bytes


def test_the_number_of_queries_is_the_dashboards():
    page = (ROOT / "docs" / "deployment.md").read_text()
    (told,) = re.findall(r"dashboard's (\d+) queries", page)
    assert int(told) == sum(len(panel["targets"]) for panel in DASHBOARD["panels"])


def test_what_is_copied_into_an_image_is_there():
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert lines[0] == "**"
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert {"fdjax", "ffi", "pyproject.toml", "constraints.txt"} <= {*kept}
    assert all((ROOT / name).exists() for name in kept)


def test_an_image_is_built_with_what_the_extension_needs():
    """Headers and a compiler; and it runs as the user that owns its folders."""
    lines = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"install .* g\+\+ .*python3-dev", lines)
    (user,) = re.findall(r"--uid (\d+)", lines)
    pod = _objects()["Deployment"]["spec"]["template"]["spec"]
    assert re.findall(r"^USER (\d+)", lines, re.MULTILINE) == [user]
    assert pod["securityContext"]["runAsUser"] == int(user)


def test_files_that_name_each_other_exist():
    services = _compose()
    for service in services.values():
        for volume in service["volumes"]:
            if volume.startswith("."):
                assert (DEPLOY / volume.partition(":")[0]).exists(), volume
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target.partition(":")[0] in services
