"use strict";
const POINTS = 120, WIDTH = 240, HEIGHT = 60;
const $ = (id) => document.getElementById(id);

function element(tag, className, parent, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  parent.append(made);
  return made;
}

// --- Plots: the last two minutes, a point a second --------------------------------------

class Plot {
  constructor(id, title, { least, names, format, unit }) {
    Object.assign(this, { least, names, format, unit, points: [] });
    this.card = element("section", "plot card", $("plots"));
    this.card.id = id;
    const head = element("div", "", this.card);
    element("h2", "", head, title);
    this.value = element("span", "value", head, "–");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    this.path(svg, "grid").setAttribute("d", `M0 0H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT}H${WIDTH}`);
    const places = ["first", "second"].slice(0, names.length);
    this.shapes = places.map((place) => [this.path(svg, `area ${place}`), this.path(svg, `line ${place}`)]);
    this.card.append(svg);
    const foot = element("div", "foot", this.card);
    this.note = element("span", "", foot);
    this.top = element("span", "", foot);
  }

  path(svg, className) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", className);
    svg.append(path);
    return path;
  }

  add(values, note) {
    this.points.push(values);
    if (this.points.length > POINTS) this.points.shift();
    const top = roundUp(Math.max(this.least, ...this.points.flat()));
    const step = WIDTH / (POINTS - 1);
    this.shapes.forEach(([area, line], series) => {
      const x = (i) => (WIDTH - (this.points.length - 1 - i) * step).toFixed(1);
      const y = (value) => (HEIGHT - (value / top) * HEIGHT).toFixed(2);
      const d = this.points.map((p, i) => `${i ? "L" : "M"}${x(i)} ${y(p[series])}`).join("");
      line.setAttribute("d", d);
      area.setAttribute("d", `${d}V${HEIGHT}H${x(0)}Z`);
    });
    this.value.replaceChildren();
    values.forEach((value, i) => {
      const name = this.names[i] ? ` ${this.names[i]}` : "";
      const part = element("span", i ? "second" : "", this.value, `${i ? "  " : ""}${this.format(value)}`);
      element("small", "", part, `${this.unit}${name}`);
    });
    this.note.textContent = note;
    this.top.textContent = `top ${this.format(top)}${this.unit}`;
  }
}

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((nice) => nice >= value * 0.999);
}

const whole = (value) => Math.round(value).toLocaleString("en");
const percent = (value) => (value && value < 10 ? value.toPrecision(2) : whole(value));
const plots = {
  throughput: new Plot("throughput", "Throughput", { least: 10, names: [""], format: whole, unit: " tokens/s" }),
  requests: new Plot("requests", "Requests", { least: 5, names: ["running", "waiting"], format: whole, unit: "" }),
  kv: new Plot("kv", "KV pages in use", { least: 10, names: [""], format: percent, unit: "%" }),
  recomputed: new Plot("recomputed", "Softmax recomputed", { least: 1, names: [""], format: percent, unit: "%" }),
};

function parse(text) {
  const values = {};
  for (const line of text.split("\n")) {
    const [, name, value] = /^\w+:(\w+)(?:\{.*\})? (\S+)$/.exec(line) ?? [];
    if (name) values[name] = (values[name] ?? 0) + Number(value);
  }
  const [, model] = /model_name="((?:[^"\\]|\\.)*)"/.exec(text) ?? [];
  if (model !== undefined) $("model").textContent = model.replace(/\\(.)/g, "$1");
  return { at: performance.now() / 1000, ...values };
}

function show(now, before) {
  const more = (name) => Math.max(now[name] - before[name], 0);
  const share = (part, all) => (all ? (100 * part) / all : 0);
  const each = (count) => count / (now.at - before.at);
  plots.throughput.add([each(more("generation_tokens_total"))], `${whole(each(more("prompt_tokens_total")))} prompt tokens/s`);
  plots.requests.add([now.num_requests_running, now.num_requests_waiting], `${whole(now.num_preemptions_total)} put back for want of pages`);
  const hits = share(now.prefix_cache_hits_total, now.prefix_cache_queries_total);
  plots.kv.add([100 * now.kv_cache_usage_perc], `${percent(hits)}% of prompts found in the cache`);
  const heads = more("softmax_query_heads_total");
  const again = share(more("softmax_query_heads_recomputed_total"), heads);
  plots.recomputed.add([again], heads ? `of ${whole(each(heads))} query heads/s` : "no decoding");
}

let latest = null;
async function poll() {
  const state = { name: "unavailable", text: "no answer" };
  try {
    const response = await fetch("metrics", { cache: "no-store" });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const now = parse(await response.text());
    if (latest) show(now, latest);
    latest = now;
    const health = await fetch("health", { cache: "no-store" });
    if (health.ok) Object.assign(state, { name: "ready", text: "ready" });
    else state.text = "takes no requests";
  } catch {
    latest = null;
  }
  $("state").dataset.state = state.name;
  $("state").textContent = state.text;
  setTimeout(poll, 1000);
}
