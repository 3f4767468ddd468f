// What the page asks of its server.

const TOKEN = "token";

/** The answer of an address as JSON. Raises an Error whose message is the server's. */
async function ask(path, body) {
  const request = { headers: { "content-type": "application/json" } };
  if (body !== undefined) Object.assign(request, { method: "POST", body: JSON.stringify(body) });
  const token = sessionStorage.getItem(TOKEN);
  if (token) request.headers.authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(path, request);
  } catch {
    throw new Error("no answer: is the server still running?");
  }
  if (answer.status === 401) {
    const given = prompt("The server's token");
    if (given) {
      sessionStorage.setItem(TOKEN, given);
      return ask(path, body);
    }
  }
  const reply = await answer.json();
  if (!answer.ok) throw new Error(reply.error?.message ?? `${answer.status} ${answer.statusText}`);
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
