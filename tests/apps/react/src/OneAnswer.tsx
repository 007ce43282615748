// One answer by `useAnswer`, which the user can stop, and hide and show again.

import { useState } from "react";
import { useAnswer } from "@loquent/client/react";
import type { Settings } from "./settings";

const BODY = { messages: [{ role: "user" as const, content: "Tell me a story." }], max_tokens: 300, temperature: 0 };

export function OneAnswer(settings: Settings) {
  const [isShown, setShown] = useState(true);
  return (
    <>
      <button type="button" onClick={() => setShown(!isShown)}>{isShown ? "Hide" : "Show"}</button>
      {isShown && <Answer {...settings} />}
    </>
  );
}

function Answer({ url, transport }: Settings) {
  const answer = useAnswer({ url, transport, remember: "story", pace: "off" });
  return (
    <main data-status={answer.status} data-transport={answer.transport ?? ""} data-pause={answer.pause?.cause ?? ""}>
      <button type="button" onClick={() => answer.ask(BODY)}>Ask</button>
      <button type="button" onClick={answer.stop}>Stop</button>
      <p id="text">{answer.text}</p>
      {answer.error instanceof Error && <p role="alert">{answer.error.message}</p>}
    </main>
  );
}
