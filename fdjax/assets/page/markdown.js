// --- Markdown: what a model says, as elements that are made one by one -------------------
// No HTML is parsed: neither the model's, which stays text, nor that of a library.

const reader = markdownit({ html: false, linkify: true });
const ALIGNED = /^text-align:(left|center|right)$/;

// The elements of a text. Blocks whose source is as in `before`, a list of [source, nodes]
// that this replaces, are kept: a selection in them stays, while the last one grows.
function showMarkdown(view, text, before) {
  const lines = text.split("\n"), blocks = [];
  for (const tokens of topBlocks(reader.parse(text, {}))) {
    const [first, end] = tokens[0].map;
    const source = lines.slice(first, end).join("\n");
    const old = before[blocks.length];
    if (old?.[0] === source) blocks.push(old);
    else blocks.push([source, built(tokens)]);
  }
  const kept = blocks.findIndex((block, i) => block !== before[i]);
  if (kept >= 0 || blocks.length < before.length) {
    const from = kept < 0 ? blocks.length : kept;
    for (const [, nodes] of before.slice(from)) nodes.forEach((node) => node.remove());
    view.append(...blocks.slice(from).flatMap(([, nodes]) => nodes));
    before.splice(0, before.length, ...blocks);
  }
}

function topBlocks(tokens) {
  const blocks = [];
  for (const token of tokens) {
    if (token.level === 0 && token.nesting >= 0) blocks.push([]);
    blocks.at(-1).push(token);
  }
  return blocks;
}

function built(tokens) {
  const whole = document.createDocumentFragment();
  let parent = whole;
  const open = (node) => { parent.append(node); parent = node; };
  const add = (token) => {
    if (token.hidden) return;  // the paragraphs of a list whose items are close together
    if (token.type === "inline") token.children.forEach(add);
    else if (token.type === "text") parent.append(token.content);
    else if (token.type === "fence" || token.type === "code_block") parent.append(codeBlock(token));
    else if (token.type === "image") parent.append(link(token.attrGet("src"), token.content || "image"));
    else if (token.type === "link_open") open(link(token.attrGet("href"), ""));
    else if (token.nesting < 0) parent = parent.parentNode;
    else if (token.nesting > 0) open(opened(token));
    else element(token.tag, "", parent, token.content);  // code within a line, a rule, a break
  };
  tokens.forEach(add);
  return [...whole.childNodes];
}

function opened(token) {
  const made = document.createElement(token.tag);
  const [, side] = ALIGNED.exec(token.attrGet("style") ?? "") ?? [];
  if (side) made.className = side;  // styles of elements are forbidden here
  if (token.attrGet("start")) made.start = token.attrGet("start");
  return made;
}

// Nothing is loaded from elsewhere: pictures are links too.
function link(address, text) {
  const made = document.createElement("a");
  Object.assign(made, { href: address, target: "_blank", rel: "noopener noreferrer", textContent: text });
  return made;
}

function codeBlock(token) {
  const language = token.info.trim().split(/\s/)[0];
  const block = document.createElement("figure");
  const head = element("figcaption", "", block);
  element("span", "", head, language);
  copyButton(head, () => token.content);
  const code = element("code", "", element("pre", "", block));
  code.append(...colored(token.content.replace(/\n$/, ""), language));
  return block;
}

// Of its HTML, which is spans of a class and text with entities, elements are made.
function colored(text, language) {
  if (!hljs.getLanguage(language)) return [text];
  const whole = document.createDocumentFragment();
  let parent = whole;
  const html = hljs.highlight(text, { language, ignoreIllegals: true }).value;
  for (const [part, className] of html.matchAll(/<span class="([^"]*)">|<\/span>|[^<]+/g)) {
    if (className !== undefined) parent = element("span", className, parent);
    else if (part === "</span>") parent = parent.parentNode;
    else parent.append(part.replace(/&(amp|lt|gt|quot|#x27);/g, (_, name) => ENTITIES[name]));
  }
  return [...whole.childNodes];
}
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#x27": "'" };

function copyButton(parent, text) {
  const button = element("button", "small", parent, "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text())) ? "Copied" : "Not allowed";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// A page that came over HTTP from another machine has no clipboard of its own.
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = element("textarea", "", document.body);
  field.value = text;
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
