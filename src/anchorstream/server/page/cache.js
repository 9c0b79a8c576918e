// The live cache as a picture: anchors, what has been evicted, the window bank by bank; and memory turn by turn.
const SVG = "http://www.w3.org/2000/svg";
const number = (n) => Math.round(n).toLocaleString();

function box(kind, x, width, title) {
  const rect = document.createElementNS(SVG, "rect");
  const text = document.createElementNS(SVG, "title");
  text.textContent = title;
  rect.append(text);
  rect.setAttribute("class", kind);
  for (const [name, value] of [["x", x], ["y", 4], ["width", Math.max(0.5, width)], ["height", 32]]) rect.setAttribute(name, value);
  return rect;
}

export function draw(chat) {
  const cache = chat?.cache, facts = chat?.facts;
  document.getElementById("cache").hidden = !cache;
  if (!cache) return;
  drawBanks(cache);
  const rows = [
    ["tokens consumed", number(cache.length)],
    ["evicted", number(cache.evicted)],
    ["anchors", number(cache.anchors)],
    ["window", number(cache.window)],
    ["memory", `${(cache.nbytes / 2 ** 20).toFixed(1)} MB`],
  ];
  if (facts) {
    rows.push(["tokens/s", facts.timings.predicted_per_second.toFixed(0)]);
    rows.push(["read this turn", `${number(facts.timings.prompt_n)} tokens`]);
  }
  document.getElementById("figures").replaceChildren(...rows.map(([name, value]) => {
    const row = document.createElement("div");
    const key = document.createElement("dt"), told = document.createElement("dd");
    key.textContent = name;
    told.textContent = value;
    row.append(key, told);
    return row;
  }));
  drawMemory(chat.memory ?? []);
}

// Anchors and window are drawn to scale; what has been evicted may be any length, and is drawn by its logarithm.
function drawBanks(cache) {
  const gone = cache.evicted > 0 ? 60 + 40 * Math.log10(cache.evicted) : 0;
  const scale = (1000 - gone) / Math.max(1, cache.cache_size);
  const boxes = [];
  let x = 0;
  const add = (bank, first, tokens) => {
    if (tokens <= 0) return;
    const kind = bank.anchors ? "anchor" : "window";
    boxes.push(box(kind, x + 0.5, tokens * scale - 1, `${kind}: tokens ${number(first)} to ${number(first + tokens - 1)}, ${bank.precision}${bank.shared ? ", shared" : ""}`));
    x += tokens * scale;
  };
  for (const bank of cache.banks.filter((each) => each.anchors)) add(bank, bank.first, bank.tokens);
  if (gone) {
    boxes.push(box("gone", x + 0.5, gone - 1, `evicted: ${number(cache.evicted)} tokens`));
    x += gone;
  }
  for (const bank of cache.banks.filter((each) => !each.anchors)) {
    const first = Math.max(bank.first, cache.window_first);
    add(bank, first, bank.first + bank.tokens - first);
  }
  document.getElementById("banks").replaceChildren(...boxes);
}

function drawMemory(memory) {
  const line = document.createElementNS(SVG, "polyline");
  const most = Math.max(1, ...memory) * 1.15;
  line.setAttribute("points", memory.map((bytes, i) => `${memory.length > 1 ? (1000 * i) / (memory.length - 1) : 0},${40 - (36 * bytes) / most}`).join(" "));
  document.getElementById("memory").replaceChildren(line);
}
