// The chat page.

import { prepare } from "@loquent/client";
import { effect } from "@preact/signals";
import { render } from "preact";
import "../shell/base.css";
import "./chat.css";
import { App } from "./app.js";
import { startChats, transport } from "./chats.js";
import { openLibrary } from "./library.js";
import { ENDPOINT } from "./running.js";
import { server, watchServer } from "./server.js";
import { keepSettings } from "./settings.js";

const app = document.getElementById("app");
if (app === null) throw new Error("the page has no #app");
// The page scrolls to the end of a conversation by itself.
history.scrollRestoration = "manual";
keepSettings();
render(<App />, app);
void openLibrary().then(startChats);
watchServer();
effect(() => {
  // Connected before the first question, so that it need not wait.
  if (server.value.is === "ready") void prepare(ENDPOINT).then((way) => (transport.value = way));
});
