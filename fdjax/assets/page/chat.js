// --- Chat -------------------------------------------------------------------------------

let exchanges = [], running = null;

async function* events(body) {
  const decoder = new TextDecoder(), reader = body.getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection ended before the answer did");
    text += decoder.decode(value, { stream: true });
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function ask(messages, signal) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  if ($("temperature").value) body.temperature = Number($("temperature").value);
  if ($("max-tokens").value) body.max_tokens = Number($("max-tokens").value);
  const response = await fetch("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (response.ok) return events(response.body);
  const told = await response.json().catch(() => ({}));
  throw new Error(told.error?.message ?? `the server answered with status ${response.status}`);
}

// What the model is sent for an exchange: those before it that were answered, and its question.
function messagesOf(exchange) {
  const system = $("system").value.trim();
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const one of exchanges.slice(0, exchanges.indexOf(exchange))) {
    if (!one.answer) continue;
    messages.push({ role: "user", content: one.question }, { role: "assistant", content: one.answer });
  }
  return [...messages, { role: "user", content: exchange.question }];
}

// Draws what grows, for at most a third of the time.
class Drawing {
  constructor(draw) {
    Object.assign(this, { draw, timer: null, next: 0 });
  }

  soon() {
    this.timer ??= setTimeout(() => this.now(), Math.max(16, this.next - performance.now()));
  }

  now() {
    clearTimeout(this.timer);
    this.timer = null;
    const begun = performance.now();
    const log = $("log"), follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    this.draw();
    if (follow) log.scrollTop = log.scrollHeight;
    const ended = performance.now();
    this.next = ended + 2 * (ended - begun);
  }
}

// A question and its answer.
class Exchange {
  constructor(question) {
    const log = $("log");
    Object.assign(this, { question, answer: "", reasoning: "" });
    this.asking = element("article", "turn user", log);
    this.answering = element("article", "turn assistant", log);
    this.showQuestion();
  }

  showQuestion() {
    this.asking.replaceChildren();
    element("div", "text", this.asking, this.question);
    const bar = element("div", "bar", this.asking);
    copyButton(bar, () => this.question);
    action(bar, "Edit", () => this.edit());
  }

  edit() {
    this.asking.replaceChildren();
    const field = element("textarea", "", this.asking);
    Object.assign(field, { value: this.question, rows: Math.min(this.question.split("\n").length + 1, 12) });
    field.setAttribute("aria-label", "Edit the message");
    const save = () => {
      if (!field.value.trim()) return;
      this.question = field.value.trim();
      this.showQuestion();
      this.run();
    };
    const bar = element("div", "bar", this.asking);
    action(bar, "Cancel", () => this.showQuestion());
    action(bar, "Send", save);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.showQuestion();
      if (isSending(event)) save();
    });
    field.focus();
  }

  // Asks the model, anew if it was asked before: what followed is gone then.
  async run() {
    running?.abort();
    for (const later of exchanges.splice(exchanges.indexOf(this) + 1)) later.remove();
    const mine = (running = this.current = new AbortController());
    $("send").textContent = "Stop";
    Object.assign(this, { answer: "", reasoning: "" });
    this.answering.replaceChildren();
    this.answering.classList.add("writing");
    $("log").scrollTop = $("log").scrollHeight;
    const told = await this.receive(mine.signal).then(
      (text) => ["note", text],
      (error) => (error.name === "AbortError" ? ["note", "stopped"] : ["note failed", error.message]),
    );
    if (running === mine) {
      running = null;
      $("send").textContent = "Send";
    }
    if (this.current !== mine || !this.asking.isConnected) return;  // asked anew, or gone
    this.answering.classList.remove("writing");
    this.end(...told);
  }

  async receive(signal) {
    const start = performance.now();
    const drawing = new Drawing(this.view());
    let first = null, count = 0;
    try {
      for await (const event of await ask(messagesOf(this), signal)) {
        signal.throwIfAborted();  // several events may have come together
        if (event.error) throw new Error(event.error.message);
        const delta = event.choices[0]?.delta ?? {};
        if (event.usage) count = event.usage.completion_tokens;
        if (!delta.content && !delta.reasoning) continue;
        first ??= performance.now();
        this.answer = (this.answer + (delta.content ?? "")).trimStart();
        this.reasoning = (this.reasoning + (delta.reasoning ?? "")).trimStart();
        drawing.soon();
      }
    } finally {
      drawing.now();
    }
    const seconds = (performance.now() - (first ?? start)) / 1000;
    const speed = count > 1 && seconds > 0 ? `, ${whole((count - 1) / seconds)} tokens/s` : "";
    return `${count} tokens, the first after ${whole((first ?? start) - start)} ms${speed}`;
  }

  // Draws what there is of the answer.
  view() {
    const thoughts = element("details", "reasoning", this.answering);
    thoughts.hidden = true;
    element("summary", "", thoughts, "Reasoning");
    const thought = element("div", "", thoughts);
    const text = element("div", "text markdown", this.answering), blocks = [];
    return () => {
      thoughts.hidden = !this.reasoning;
      thought.textContent = this.reasoning;
      showMarkdown(text, this.answer, blocks);
    };
  }

  end(className, text) {
    const bar = element("div", "bar", this.answering);
    if (this.answer) copyButton(bar, () => this.answer);
    action(bar, this.answer ? "Regenerate" : "Try again", () => this.run());
    element("span", className, bar, text);
    $("log").scrollTop = $("log").scrollHeight;
  }

  remove() {
    this.asking.remove();
    this.answering.remove();
  }
}

function action(bar, name, act) {
  const button = element("button", "small", bar, name);
  button.type = "button";
  button.addEventListener("click", act);
}

const isSending = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

function send(text) {
  $("hint").hidden = true;
  const exchange = new Exchange(text);
  exchanges.push(exchange);
  exchange.run();
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (running) return running.abort();
  if (!text) return;
  $("prompt").value = "";
  send(text);
});
$("prompt").addEventListener("keydown", (event) => {
  if (!isSending(event)) return;
  event.preventDefault();
  if (!running) $("form").requestSubmit();
});
$("fresh").addEventListener("click", () => {
  const old = running;
  running = null;
  old?.abort();
  $("send").textContent = "Send";
  for (const exchange of exchanges.splice(0)) exchange.remove();
  $("hint").hidden = false;
  $("prompt").focus();
});
poll();
