// An app's own server, which gives its users' browsers short-lived tokens and keeps the API key:
// LOQUENT_API_KEY=… node token_server.mjs [LOQUENT_URL] [PORT]
import { createServer } from "node:http";

const [loquent = "http://127.0.0.1:8080", port = "8090"] = process.argv.slice(2);

/** Who sends a request: an app looks at its session's cookie here. `null`: nobody it knows. */
function userOf(request) {
  return request.headers["x-demo-user"] ?? null;
}

async function tokenFor(user) {
  const response = await fetch(`${loquent}/v1/tokens`, {
    method: "POST",
    headers: { authorization: `Bearer ${process.env.LOQUENT_API_KEY}`, "content-type": "application/json" },
    // `user` lets a reload go on with a question, and keeps one user's prompts from another's timing.
    body: JSON.stringify({ expires_in: 600, max_requests: 100, user }),
  });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  const { token, expires_in } = await response.json();
  return { token, expires_in };
}

const server = createServer(async (request, response) => {
  const user = userOf(request);
  if (request.method !== "POST" || request.url !== "/api/token") return void response.writeHead(404).end();
  if (user === null) return void response.writeHead(401).end();
  try {
    const body = JSON.stringify(await tokenFor(user));
    response.writeHead(200, { "content-type": "application/json", "cache-control": "no-store" }).end(body);
  } catch (error) {
    console.error(error);
    response.writeHead(502).end();
  }
});
server.listen(Number(port), "127.0.0.1", () => console.error(`on http://127.0.0.1:${server.address().port}`));
