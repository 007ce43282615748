// One turn of the conversation: the message, and what can be done with it.

import type { VNode } from "preact";
import { isOpen } from "../message/model.js";
import type { MessageViewProps } from "../message/view.js";
import { CopyButton, IconButton } from "../shell/controls.js";
import { lazy } from "../shell/lazy.js";
import { answerAgain, canContinue, chooseVersion, continueAnswer, current, failures, isRunning, liveOf, running } from "./chats.js";
import { type Turn, versionsOf } from "./conversation.js";
import { editedTurn } from "./layout.js";
import { chosenModel } from "./server.js";
import { settings } from "./settings.js";

/** How messages are shown; needed with the first one. */
export const MessageView = lazy(async () => (await import("../message/view.js")).MessageView, PlainMessage);

/** A message without its view: as it stood when it was drawn. */
function PlainMessage({ live, children }: MessageViewProps): VNode {
  const { role, state } = live.message;
  return (
    <article class={`message ${role} ${isOpen(state) ? "streaming" : state.is}`}>
      <div class="text">{live.message.text}</div>
      <footer>{children}</footer>
    </article>
  );
}

const Attached = lazy(async () => (await import("./attached.js")).Attached);
const ContextNotice = lazy(async () => (await import("./context_notice.js")).ContextNotice);
const QuestionEditor = lazy(async () => (await import("./question_editor.js")).QuestionEditor);

export interface TurnProps {
  readonly turn: Turn;
  readonly isLast: boolean;
}

export function TurnView({ turn, isLast }: TurnProps): VNode {
  if (editedTurn.value === turn.id) return <QuestionEditor turn={turn} />;
  const live = liveOf(turn);
  const isQuestion = turn.message.role === "user";
  const isOnItsWay = running.value.get(current.value.id)?.id === turn.id;
  return (
    <div class={`turn ${turn.message.role}`}>
      {turn.files.length > 0 && <Attached files={turn.files} />}
      <MessageView live={live} markdown={settings.value.markdown} pauses={settings.value.pauses} wantsSse={settings.value.delivery === "sse"} onRetry={() => answerAgain(turn)}>
        {!isOnItsWay && (
          <span class="actions">
            <Versions turn={turn} />
            <CopyButton text={() => live.message.text} label="Copy this message" />
            {isQuestion && <IconButton icon="edit" label="Edit this question" disabled={isRunning()} onClick={() => (editedTurn.value = turn.id)} />}
            {!isQuestion && <IconButton icon="retry" label="Answer again" disabled={isRunning()} onClick={() => answerAgain(turn)} />}
          </span>
        )}
      </MessageView>
      {isLast && !isOnItsWay && canContinue(turn) && !fillsContext(turn) && (
        <button type="button" class="go-on" disabled={isRunning()} onClick={() => continueAnswer(turn)}>
          Continue
        </button>
      )}
      {isLast && !isOnItsWay && <Notice turn={turn} />}
    </div>
  );
}

/** Goes through the versions of a turn, if there are several. */
function Versions({ turn }: { readonly turn: Turn }): VNode | null {
  const versions = versionsOf(current.value, turn);
  const at = versions.findIndex(({ id }) => id === turn.id);
  if (versions.length < 2) return null;
  const show = (index: number): void => {
    const version = versions[index];
    if (version) chooseVersion(version.id);
  };
  return (
    <span class="versions">
      <IconButton icon="left" label="Previous version" disabled={at === 0 || isRunning()} onClick={() => show(at - 1)} />
      {/* biome-ignore lint/a11y/useAriaPropsSupportedByRole: where it is not read aloud, "1/2" is */}
      <span aria-label={`Version ${at + 1} of ${versions.length}`}>
        {at + 1}/{versions.length}
      </span>
      <IconButton icon="right" label="Next version" disabled={at === versions.length - 1 || isRunning()} onClick={() => show(at + 1)} />
    </span>
  );
}

/** What the page can do about the way in which an answer ended. */
function Notice({ turn }: { readonly turn: Turn }): VNode | null {
  const failure = failures.value.get(turn.id);
  if (failure === "context") return <ContextNotice turn={turn} />;
  return fillsContext(turn) ? <ContextNotice turn={turn} /> : null;
}

/** Whether an answer ended because the model can read and write no more. */
function fillsContext({ message: { state, facts } }: Turn): boolean {
  const limit = chosenModel()?.contextTokens ?? null;
  if (limit === null || state.is !== "finished" || state.reason !== "length") return false;
  return (facts.promptTokens ?? 0) + facts.tokens >= limit;
}
