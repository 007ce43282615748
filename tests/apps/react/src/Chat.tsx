// A chat by the AI SDK's `useChat`, whose messages the tab keeps.

import { useChat } from "@ai-sdk/react";
import { LoquentChatTransport } from "@loquent/client/ai";
import type { ChatTransport, UIMessage } from "ai";
import { useEffect, useState } from "react";
import type { Settings } from "./settings";

const KEPT = "messages";

function keptMessages(): UIMessage[] {
  return JSON.parse(sessionStorage.getItem(KEPT) ?? "[]") as UIMessage[];
}

export function Chat({ url, transport: way }: Settings) {
  const [transport] = useState((): ChatTransport<UIMessage> => {
    return new LoquentChatTransport({ url, transport: way, pace: "off", body: { max_tokens: 300, temperature: 0 } });
  });
  const { messages, sendMessage, status, stop, error } = useChat({
    id: "main",
    messages: keptMessages(),
    transport,
    resume: true,
  });
  useEffect(() => {
    // An answer under way is the library's to keep.
    const whole = status === "ready" ? messages : messages.filter(({ role }) => role === "user");
    sessionStorage.setItem(KEPT, JSON.stringify(whole));
  }, [messages, status]);
  return (
    <main data-status={status}>
      <button type="button" onClick={() => void sendMessage({ text: "Tell me a story." })}>Ask</button>
      <button type="button" onClick={() => void stop()}>Stop</button>
      {messages.map((message) => (
        <p key={message.id} className={message.role}>
          {message.parts.map((part) => (part.type === "text" ? part.text : ""))}
        </p>
      ))}
      {error && <p role="alert">{error.message}</p>}
    </main>
  );
}
