// The head of the chat: the model, whether its server is there, how tokens come, settings.

import type { VNode } from "preact";
import { IconButton, ThemeButton } from "../shell/controls.js";
import { newChat, settingsOpen, sidebarOpen } from "./layout.js";
import { current, transport } from "./chats.js";
import { type ServerState, chosenModel, server } from "./server.js";
import { changeSettings } from "./settings.js";

export function ChatHeader(): VNode {
  const toggleSidebar = (): void => void (sidebarOpen.value = true);
  const toggleSettings = (): void => void (settingsOpen.value = !settingsOpen.value);
  return (
    <header class="chat-header">
      {!sidebarOpen.value && <IconButton id="conversations" icon="menu" label="Conversations" onClick={toggleSidebar} expanded={false} />}
      <h1 class="unseen">{current.value.title || "Loquent"}</h1>
      <ModelPicker />
      <PresetName />
      <span class="space" />
      <TransportBadge />
      {!sidebarOpen.value && <IconButton id="new" icon="edit" label="New chat" onClick={newChat} />}
      <ThemeButton />
      <IconButton id="settings-button" icon="settings" label="Settings" onClick={toggleSettings} expanded={settingsOpen.value}>
        <span class="wide">Settings</span>
      </IconButton>
    </header>
  );
}

/** What is said in place of the model's name while there is none. */
function stateText(state: ServerState): string {
  if (state.is === "connecting") return "connecting…";
  if (state.is === "loading") return state.why;
  return state.is === "gone" ? "the server does not answer" : state.name;
}

function ModelPicker(): VNode {
  const state = server.value;
  const models = state.is === "ready" ? state.models : [];
  const dot = <span class={`dot ${state.is}`} aria-hidden="true" />;
  if (models.length < 2) {
    return (
      <span class="model">
        {dot}
        <span id="model" title="The model that answers">
          {models[0]?.id ?? stateText(state)}
        </span>
      </span>
    );
  }
  const choose = (event: Event): void => changeSettings({ model: (event.currentTarget as HTMLSelectElement).value });
  return (
    <span class="model">
      {dot}
      <select id="model" aria-label="Model" value={chosenModel()?.id ?? ""} onChange={choose}>
        {models.map(({ id }) => (
          <option key={id} value={id}>
            {id}
          </option>
        ))}
      </select>
    </span>
  );
}

function PresetName(): VNode | null {
  const name = current.value.preset?.name;
  return name === undefined ? null : (
    <span class="preset faint wide" title="The preset of this conversation">
      {name}
    </span>
  );
}

const TRANSPORTS = {
  webtransport: { name: "WebTransport", about: "Tokens come as datagrams: loss does not hold back what follows" },
  sse: { name: "SSE", about: "Tokens come as server-sent events over TCP, the way that works everywhere" },
} as const;

function TransportBadge(): VNode | null {
  const way = transport.value;
  if (way === null) return null;
  const { name, about } = TRANSPORTS[way];
  const isGone = server.value.is === "gone";
  const [label, title] = isGone ? ["offline", "The server does not answer"] : [name, about];
  return (
    <span id="transport" class={isGone ? "gone" : way} role="img" title={title} aria-label={isGone ? title : `Delivered by ${name}`}>
      {label}
    </span>
  );
}
