// What the address says: which server, by which transport, with which framework.

export interface Settings {
  readonly url: string;
  readonly transport: "auto" | "webtransport" | "sse";
  readonly view: "hook" | "chat" | "vue";
}

export function settingsOf(search: string): Settings {
  const given = new URLSearchParams(search);
  const transport = given.get("transport");
  const view = given.get("view");
  return {
    url: given.get("url") ?? "http://127.0.0.1:8080/v1/chat/completions",
    transport: transport === "webtransport" || transport === "sse" ? transport : "auto",
    view: view === "chat" || view === "vue" ? view : "hook",
  };
}
