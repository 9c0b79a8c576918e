// The server's API, as far as the page needs it.
import { setting } from "/page/store.js";

function headers() {
  const key = setting("key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { headers: headers(), ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. What you have written is kept; try again.", 0);
  }
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    throw new ServerError(told?.error?.message ?? `The server answered ${response.status}.`, response.status);
  }
  return response;
}

export async function models() {
  return (await (await call("/v1/models")).json()).data;
}

export async function session(id, method = "GET") {
  return (await call(`/v1/sessions/${encodeURIComponent(id)}`, { method })).json();
}

// A streamed reply: onText for each piece, onFacts at the end.
export async function reply(messages, { signal, onText, onFacts }) {
  const body = {
    messages,
    stream: true,
    temperature: Number(setting("temperature") ?? 0.7),
    max_completion_tokens: Number(setting("max-tokens") ?? 512),
  };
  const response = await call("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "", done = false;
  try {
    for (;;) {
      const { value, done: over } = await reader.read();
      if (over) break;
      const lines = (pending + value).split("\n");
      pending = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        if (line === "data: [DONE]") { done = true; continue; }
        const chunk = JSON.parse(line.slice(6));
        if (chunk.error) throw new ServerError(chunk.error.message, 500);
        const text = chunk.choices[0]?.delta?.content;
        if (text) onText(text);
        if (chunk.streaming) onFacts(chunk);
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError("The connection broke off. What came is kept; go on when the server is back.", 0);
  }
  if (!done) throw new ServerError("The connection broke off. What came is kept; go on when the server is back.", 0);
}
