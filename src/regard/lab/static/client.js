// The client of the server's API. Responses are cached, and a view can be saved with them as one file.

const ARRAYS = { float32: Float32Array, uint8: Uint8Array, int32: Int32Array, bool8: Uint8Array };
const MAX_CACHE_BYTES = 64e6;

// JSON with sorted keys: equal values give equal strings.
export function stableStringify(value) {
  if (Array.isArray(value)) return `[${value.map(stableStringify).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  return `{${Object.keys(value).filter(key => value[key] !== undefined).sort().map(key => `${JSON.stringify(key)}:${stableStringify(value[key])}`).join(",")}}`;
}

// The binary format of responses: header length, JSON header, padding to 8 bytes, arrays.
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true), start = Math.ceil((4 + length) / 8) * 8;
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return revive(header, buffer, start);
}
function revive(value, buffer, start) {
  if (Array.isArray(value)) return value.map(item => revive(item, buffer, start));
  if (value === null || typeof value !== "object") return value;
  if ("tensor" in value && "shape" in value && "at" in value) {
    const size = value.shape.reduce((product, side) => product * side, 1);
    return { shape: value.shape, data: new ARRAYS[value.type](buffer, start + value.at, size) };
  }
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, revive(item, buffer, start)]));
}

// `texts`: the message in both languages.
export class RequestError extends Error {
  constructor(message, status, texts = null) { super(message); this.status = status, this.texts = texts; }
}
export async function errorOf(response) {
  const { error, texts } = await response.json().catch(() => ({}));
  return new RequestError(error ?? response.statusText, response.status, texts);
}

export class Client {
  #cache = new Map(); // key → {path, body, answer, size}, oldest first
  constructor(recorded = null) {
    this.exported = recorded !== null;
    this.received = 0, this.answered = 0;
    for (const held of recorded?.answers ?? []) { const body = { ...recorded.bases?.[held.base], ...held.body }; this.#cache.set(`${held.path} ${stableStringify(body)}`, { ...held, body, size: 0 }); }
  }
  // The requests made after `since` (a value of `answered`), for saving a view.
  requests(since = 0) {
    return [...this.#cache.values()].filter(held => (held.used ?? 0) > since).map(({ path, body }) => ({ path, body }));
  }
  // `keep: false` skips the cache, for responses that change, such as a training run in progress; `renew` asks again and stores the answer.
  async request(path, body = {}, { signal, onProgress, keep = true, renew = false } = {}) {
    const key = `${path} ${stableStringify(body)}`, kept = this.#cache.get(key);
    if (kept && !("answer" in kept)) kept.answer = await read(kept), delete kept.pack, delete kept.zip;
    if (kept && keep && (!renew || this.exported)) return this.#use(key, kept).answer;
    if (this.exported) throw new RequestError("", 410);
    const found = await this.#send(path, body, signal, onProgress);
    return keep ? this.#use(key, { path, body, ...found }).answer : found.answer;
  }
  #use(key, held) {
    this.#cache.delete(key), this.#cache.set(key, held);
    held.used = ++this.answered;
    let size = 0;
    for (const one of this.#cache.values()) size += one.size;
    for (const [name, one] of this.#cache) if (size > MAX_CACHE_BYTES && name !== key && !this.exported) size -= one.size, this.#cache.delete(name);
    return held;
  }
  async #send(path, body, signal, onProgress) {
    const job = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random().toString(16).slice(2)}`, text = JSON.stringify(body);
    const watch = onProgress && setInterval(() => progress(job, onProgress), 400);
    // with the name: the server may not have the request yet, and then it is cancelled when it comes
    const cancel = () => fetch(`/api/job/${job}`, { method: "DELETE", headers: { "X-Job": job } }).catch(() => {});
    signal?.addEventListener("abort", cancel, { once: true });
    try {
      const response = await fetch(`/api/${path}`, { method: "POST", body: text, signal, headers: { "Content-Type": "application/json", "X-Job": job } });
      return await this.#answer(response);
    } finally {
      clearInterval(watch), signal?.removeEventListener("abort", cancel);
    }
  }
  async #answer(response) {
    const json = (response.headers.get("Content-Type") ?? "").startsWith("application/json"), buffer = await response.arrayBuffer();
    this.received += buffer.byteLength;
    const words = () => new TextDecoder().decode(buffer);
    if (response.status === 499) throw new DOMException("cancelled", "AbortError");
    if (!response.ok) throw await errorOf(new Response(buffer, response));
    return { answer: json ? JSON.parse(words()) : unpack(buffer), size: buffer.byteLength };
  }
}

// A stored answer of a saved view.
async function read(held) {
  if ("json" in held) return held.json;
  const bytes = Uint8Array.from(atob(held.pack ?? held.zip), letter => letter.charCodeAt(0));
  return unpack(held.zip ? await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer() : bytes.buffer);
}

async function progress(job, tell) {
  const response = await fetch(`/api/job/${job}`, { headers: { "X-Job": job } }).catch(() => null);
  if (response?.ok) tell(await response.json());
}
