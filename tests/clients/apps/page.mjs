// A chat page as an app would have it: useChat straight at Loquent. Its messages survive a reload in
// the browser's storage; what was still being written then is resumed.
import { useChat } from "@ai-sdk/react";
import { WorkflowChatTransport } from "@ai-sdk/workflow/client";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls } from "ai";
import { createElement as h, useEffect } from "react";
import { createRoot } from "react-dom/client";

const query = new URLSearchParams(location.search);
const api = query.get("api");
const id = query.get("id") ?? "chat";
const tools = JSON.parse(query.get("tools") ?? "[]");

/** Cuts the connection of the first answer after some bytes, as a network would. */
function cuttingFetch(afterBytes) {
    return async (...request) => {
        const response = await fetch(...request);
        window.requests = (window.requests ?? 0) + 1;
        if (afterBytes === 0) return response;
        let left = afterBytes;
        afterBytes = 0;
        const cut = new TransformStream({
            transform(piece, controller) {
                left -= piece.length;
                if (left < 0) controller.error(new TypeError("network error"));
                else controller.enqueue(piece);
            },
        });
        return new Response(response.body.pipeThrough(cut), response);
    };
}

const transport =
    query.get("transport") === "workflow"
        ? new WorkflowChatTransport({ api, fetch: cuttingFetch(Number(query.get("cut") ?? 0)) })
        : new DefaultChatTransport({ api, body: tools.length > 0 ? { tools } : {} });

function Chat() {
    const chat = useChat({
        id,
        transport,
        resume: query.get("transport") !== "workflow",
        messages: JSON.parse(localStorage.getItem(id) ?? "[]"),
        sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
        onToolCall({ toolCall }) {
            // Not awaited: the SDK asks for that, since the call happens inside the stream's reading.
            chat.addToolOutput({
                tool: toolCall.toolName,
                toolCallId: toolCall.toolCallId,
                output: `say=The sky over ${toolCall.input.city} is clear.`,
            });
        },
    });
    useEffect(() => localStorage.setItem(id, JSON.stringify(chat.messages)), [chat.messages]);
    // The recipe: an aborted fetch ends the reading, the DELETE ends the answer.
    const stop = async () => {
        await chat.stop();
        await fetch(`${api}/${encodeURIComponent(id)}/stream`, { method: "DELETE" });
    };
    Object.assign(window, { chat, stop });
    const shown = chat.messages.map((message) =>
        h("article", { key: message.id, className: message.role }, JSON.stringify(message.parts)),
    );
    return h("main", null, h("output", { id: "status" }, chat.status), h("pre", { id: "error" }, chat.error?.message), shown);
}

createRoot(document.getElementById("root")).render(h(Chat));
