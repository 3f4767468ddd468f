// What the page asks of its server.

const TOKEN = "token";

/** The server's answer to a request. Asks for the token until the server takes it, or nobody gives one. */
export async function send(path, request = {}) {
  const headers = { "content-type": "application/json" };
  const token = sessionStorage.getItem(TOKEN);
  if (token && /^[ -~]+$/.test(token)) headers.authorization = `Bearer ${token}`; // a header holds no other characters
  const answer = await fetch(path, { ...request, headers });
  if (answer.status !== 401) return answer;
  if (sessionStorage.getItem(TOKEN) !== token) return send(path, request); // given meanwhile, to another request
  const given = prompt(token ? "That is not the server's token. The server's token" : "The server's token")?.trim();
  if (!given) return answer;
  sessionStorage.setItem(TOKEN, given);
  return send(path, request);
}

/** The answer of an address as JSON. Raises an Error whose message is the server's. */
async function ask(path, body) {
  let answer;
  try {
    answer = await send(path, body === undefined ? {} : { method: "POST", body: JSON.stringify(body) });
  } catch {
    throw new Error("no answer: is the server still running?");
  }
  const reply = await answer.json().catch(() => null); // a proxy answers in HTML
  if (!answer.ok || !reply) throw new Error(reply?.error?.message ?? `no answer of the server: ${answer.status} ${answer.statusText}`);
  return reply;
}

/** The models here: `id`, `uses`, and of fine-tuned ones `task`, `labels` and, where they read texts, `columns`. */
export const listModels = async () => (await ask("/v1/models")).data;

/** The answer of one use of a model. */
export const askModel = (model, use, body) => ask(`/v1/models/${encodeURIComponent(model)}/${use}`, body);

/** The only prediction of a use that takes a list of inputs, `found`, and how many tokens were not read, `leftOut`. */
export async function predict(model, use, input, more = {}) {
  const reply = await askModel(model, use, { inputs: [input], ...more });
  return { found: reply.predictions[0], leftOut: reply.tokens_left_out[0] };
}
