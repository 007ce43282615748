// One answer by Vue's composable.

import { useAnswer } from "@loquent/client/vue";
import { createApp, defineComponent, h } from "vue";
import type { Settings } from "./settings";

export function mountOneAnswer(root: Element, { url, transport }: Settings): void {
  const Answer = defineComponent(() => {
    const { answer, ask, stop } = useAnswer({ url, transport, remember: "story", pace: "off" });
    const body = { messages: [{ role: "user" as const, content: "Tell me a story." }], max_tokens: 300, temperature: 0 };
    return () =>
      h("main", { "data-status": answer.status, "data-transport": answer.transport ?? "" }, [
        h("button", { onClick: () => ask(body) }, "Ask"),
        h("button", { onClick: stop }, "Stop"),
        h("p", { id: "text" }, answer.text),
      ]);
  });
  createApp(Answer).mount(root);
}
