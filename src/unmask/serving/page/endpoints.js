// Sends a form's request to the server that the page came from, and shows the answer below it.
"use strict";

for (const form of document.forms) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const shown = form.nextElementSibling;
    const fields = new FormData(form);
    const address = form.dataset.path.replace("{name}", encodeURIComponent(fields.get("name") ?? ""));
    const request = { method: form.dataset.method, headers: { "content-type": "application/json" } };
    const token = sessionStorage.getItem("token");
    if (token) request.headers.authorization = `Bearer ${token}`;
    if (fields.has("body")) request.body = fields.get("body");
    shown.hidden = false;
    try {
      const answer = await fetch(address, request);
      const text = await answer.text();
      let pretty = text;
      try {
        pretty = JSON.stringify(JSON.parse(text), null, 1);
      } catch {
        // the metrics are plain text
      }
      shown.textContent = `${answer.status} ${answer.statusText}\n${pretty}`;
      if (answer.status === 401) {
        const given = prompt("The server's token");
        if (given) {
          sessionStorage.setItem("token", given);
          form.requestSubmit();
        }
      }
    } catch (error) {
      shown.textContent = `no answer: ${error.message}`;
    }
  });
}
