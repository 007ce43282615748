// The chat page.

import { prepare } from "@loquent/client";
import { effect } from "@preact/signals";
import { render } from "preact";
import "../shell/base.css";
import "../message/message.css";
import "./chat.css";
import { App } from "./app.js";
import { startChats, transport } from "./chats.js";
import { type Library, openLibrary } from "./library.js";
import { ENDPOINT } from "./running.js";
import { server, watchServer } from "./server.js";
import { isPartMissing, withPart } from "../shell/lazy.js";
import { keepSettings } from "./settings.js";
import { say } from "./toast.js";

const app = document.getElementById("app");
if (app === null) throw new Error("the page has no #app");
// The page scrolls to the end of a conversation by itself.
history.scrollRestoration = "manual";
keepSettings();
render(<App />, app);
void openLibrary().then(begin);
watchServer();

/** Shows what was open in this tab before a reload, or what another device hands over. */
async function begin(library: Library): Promise<void> {
  await startChats(library);
  if (location.hash !== "") withPart(import("./handover.js"), ({ continueHere }) => continueHere());
}

effect(() => {
  // Connected before the first question, so that it need not wait.
  if (server.value.is === "ready") void prepare(ENDPOINT).then((way) => (transport.value = way));
});

effect(() => {
  if (!isPartMissing.value) return;
  say("A part of this page could not be loaded.", { label: "Reload", act: () => location.reload() });
});
