// Sends a form's request to the server that the page came from, and shows the answer below it. A model that is chosen
// brings its example, where the one before is unchanged.
import { send } from "./api.js";

for (const form of document.forms) {
  const { name, body } = form.elements;
  let example = body?.value;
  name?.addEventListener("change", () => {
    const its = name.selectedOptions[0].dataset.body;
    if (body && body.value === example) example = body.value = its;
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const shown = form.nextElementSibling;
    const fields = new FormData(form);
    const address = form.dataset.path.replace("{name}", encodeURIComponent(fields.get("name") ?? ""));
    const request = { method: form.dataset.method };
    if (fields.has("body")) request.body = fields.get("body");
    shown.hidden = false;
    try {
      const answer = await send(address, request);
      const text = await answer.text();
      let pretty = text;
      try {
        pretty = JSON.stringify(JSON.parse(text), null, 1);
      } catch {
        // the metrics are plain text
      }
      shown.textContent = `${answer.status} ${answer.statusText}\n${pretty}`;
    } catch (error) {
      shown.textContent = `no answer: ${error.message}`;
    }
  });
}
