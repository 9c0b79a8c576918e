// The page: state, and what is done with it. The server is told the whole conversation each turn, and recognises it.
import { reply, session, models } from "/page/api.js";
import * as store from "/page/store.js";
import { draw } from "/page/cache.js";

const $ = (id) => document.getElementById(id);
let chats = store.load();
let current = chats.find((chat) => chat.id === store.selected()) ?? null;
let running = null; // an AbortController while a reply comes in
let editing = null; // the place of the message that is being edited

// ---- drawing ----

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(text, action, label) {
  const made = element("button", "", text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", action);
  return made;
}

function drawList() {
  $("list").replaceChildren(...chats.map((chat) => {
    const item = element("li");
    const open = button(chat.title || "New chat", () => select(chat));
    open.classList.add("open");
    open.setAttribute("aria-current", String(chat === current));
    const remove = button("\u00d7", () => forget(chat), `Delete ${chat.title || "this chat"}`);
    remove.classList.add("remove");
    item.append(open, remove);
    return item;
  }));
}

function drawMessages() {
  const messages = current?.messages ?? [];
  const items = messages.map((message, place) => {
    const item = element("li", message.role);
    item.append(element("div", "text", message.content));
    const tools = element("div", "tools");
    if (!running && message.role === "user") tools.append(button("Edit", () => edit(place)));
    if (!running && message.role === "assistant" && place === messages.length - 1) {
      tools.append(button("Regenerate", regenerate));
    }
    if (tools.childElementCount) item.append(tools);
    return item;
  });
  $("messages").replaceChildren(...items);
  $("messages").scrollTop = $("messages").scrollHeight;
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
}

function drawAll() {
  drawList();
  drawMessages();
  draw(current);
}

function tell(text) {
  $("alert").textContent = text;
  $("alert").hidden = !text;
}

function keep() {
  if (!store.save(chats, current)) tell("This browser's storage is full: delete old chats to keep new ones.");
}

// ---- actions ----

function select(chat) {
  running?.abort();
  current = chat;
  document.body.classList.remove("side-open");
  $("toggle").setAttribute("aria-expanded", "false");
  tell("");
  keep();
  drawAll();
  refresh();
  $("input").focus();
}

function fresh() {
  const system = $("system").value.trim();
  const chat = { id: crypto.randomUUID?.() ?? String(Date.now()), title: "", messages: [], session: null, memory: [], cache: null };
  if (system) chat.messages.push({ role: "system", content: system });
  chats.unshift(chat);
  return chat;
}

function forget(chat) {
  if (chat === current) running?.abort();
  chats = chats.filter((each) => each !== chat);
  if (chat === current) current = chats[0] ?? null;
  if (chat.session) session(chat.session, "DELETE").catch(() => {});
  keep();
  drawAll();
}

function edit(place) {
  editing = place;
  $("input").value = current.messages[place].content;
  $("input").focus();
}

function submit() {
  const text = $("input").value;
  if (running || !text.trim()) return;
  current ??= fresh();
  if (editing !== null) current.messages.length = editing;
  editing = null;
  current.messages.push({ role: "user", content: text });
  current.title ||= text.trim().slice(0, 60);
  $("input").value = "";
  answer(current);
}

function regenerate() {
  current.messages.pop();
  answer(current);
}

async function answer(chat) {
  running = new AbortController();
  tell("");
  const asked = [...chat.messages];
  const told = { role: "assistant", content: "" };
  chat.messages.push(told);
  keep();
  drawAll();
  const item = $("messages").lastElementChild;
  item.classList.add("waiting");
  const poll = setInterval(() => refresh(), 700);
  try {
    await reply(asked, {
      signal: running.signal,
      onText(text) {
        item.classList.remove("waiting");
        told.content += text;
        if (chat === current) item.querySelector(".text").textContent = told.content;
        $("messages").scrollTop = $("messages").scrollHeight;
      },
      onFacts(facts) {
        chat.session = facts.streaming.session;
        chat.facts = facts;
      },
    });
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  }
  clearInterval(poll);
  running = null;
  if (!told.content) {
    const at = chat.messages.indexOf(told);
    if (at >= 0) chat.messages.splice(at, 1);
  }
  keep();
  drawAll();
  await refresh(true);
}

async function refresh(note = false) {
  const chat = current;
  if (!chat?.session) return draw(chat);
  try {
    const shown = await session(chat.session);
    if (shown.cache) {
      chat.cache = shown.cache;
      if (note) {
        chat.memory.push(shown.cache.nbytes);
        if (chat.memory.length > 500) chat.memory.shift();
        keep();
      }
    }
  } catch { /* it has gone from the server: the next turn brings it back */ }
  if (chat === current) draw(chat);
}

// ---- wiring ----

$("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
$("new").addEventListener("click", () => select(null));
$("stop").addEventListener("click", () => running?.abort());
$("toggle").addEventListener("click", () => {
  const open = document.body.classList.toggle("side-open");
  $("toggle").setAttribute("aria-expanded", String(open));
});
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
  if (event.key === "ArrowUp" && !$("input").value && current && !running) {
    const last = current.messages.findLastIndex((message) => message.role === "user");
    if (last >= 0) { event.preventDefault(); edit(last); }
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  running?.abort();
  editing = null;
  document.body.classList.remove("side-open");
});
for (const [id, initial] of [["system", ""], ["temperature", "0.7"], ["max-tokens", "512"], ["key", ""]]) {
  $(id).value = store.setting(id) ?? initial;
  $(id).addEventListener("change", () => { store.set(id, $(id).value); greet(); });
}

async function greet() {
  try {
    const [model] = await models();
    $("model").textContent = `${model.id} \u00b7 window of ${model.meta.cache_size.toLocaleString()} tokens, endless`;
    tell("");
  } catch (error) {
    $("model").textContent = "not connected";
    tell(error.message);
    if (error.status === 503) setTimeout(greet, 1000);
    if (error.status === 401) $("settings").open = true;
  }
}

greet();
drawAll();
refresh();
$("input").focus();
