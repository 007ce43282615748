// The app: one answer by the hook, a chat by the AI SDK, or one answer by Vue.

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Chat } from "./Chat";
import { OneAnswer } from "./OneAnswer";
import { settingsOf } from "./settings";

const root = document.querySelector("#root");
if (!root) throw new Error("the page has no place for the app");
const settings = settingsOf(location.search);
if (settings.view === "vue") {
  const { mountOneAnswer } = await import("./vue_answer");
  mountOneAnswer(root, settings);
} else {
  createRoot(root).render(
    <StrictMode>{settings.view === "chat" ? <Chat {...settings} /> : <OneAnswer {...settings} />}</StrictMode>,
  );
}
