// The page's conversations: which one is open, which answers are on their way, and everything that
// the user does with them.

import { signal } from "@preact/signals";
import { type TransportName, forgetChat } from "@loquent/client";
import { LiveMessage } from "../message/live.js";
import { loadMarkdown } from "../message/markdown/stream.js";
import { type Message, NO_FACTS, emptyMessage, isOpen } from "../message/model.js";
import { readStored, writeStored } from "../shell/stored.js";
import {
  type AnswerReference,
  type Attachment,
  type Conversation,
  type Turn,
  addAnswer,
  addQuestion,
  fuller,
  merged,
  newConversation,
  requestMessages,
  showVersion,
  shownPath,
  turnOf,
  withMessage,
  withPreset,
  withoutTurn,
  withoutUnanswered,
} from "./conversation.js";
import { type FailureKind, failureKind } from "./explain.js";
import { type Head, type Library, idsWith } from "./library.js";
import { RunningAnswer, textBefore } from "./running.js";
import { chosenModel, lookSoon } from "./server.js";
import type { Instructions, Preset } from "./preset.js";
import { changeSettings, instructionsOf } from "./settings.js";
import { announce, say } from "./toast.js";

const OPEN_KEY = "loquent:conversation";

/** How often an answer on its way is stored, ms. */
const SAVE_EVERY_MS = 2_000;

export const heads = signal<readonly Head[]>([]);
export const current = signal<Conversation>(newConversation(Date.now()));
/** Answers on their way, by the conversation that they belong to. */
export const running = signal<ReadonlyMap<string, RunningAnswer>>(new Map());
/** Whether conversations outlive the page. */
export const isLasting = signal(true);
export const transport = signal<TransportName | null>(null);
/** Why answers failed, as far as the page can help. */
export const failures = signal<ReadonlyMap<string, FailureKind>>(new Map());

let library: Library | null = null;
const lives = new Map<string, LiveMessage>();
const savedAt = new Map<string, number>();

/** Takes up `opened`, and the conversation that this tab had open before a reload. */
export async function startChats(opened: Library): Promise<void> {
  library = opened;
  isLasting.value = opened.isLasting;
  opened.listen(
    (changed) => void hearOtherTab(changed),
    (turn) => [...running.peek().values()].some(({ id }) => id === turn),
  );
  heads.value = await opened.heads();
  const id = readStored("tab", OPEN_KEY);
  if (typeof id === "string" && shownPath(current.peek()).length === 0) await openConversation(id);
}

/** Another tab has kept or deleted the conversation `id`. */
async function hearOtherTab(id: string): Promise<void> {
  heads.value = (await library?.heads().catch(sayFailed)) ?? heads.peek();
  const theirs = id === current.peek().id && (await load(id));
  if (theirs) takeIn(theirs);
}

/** Shows what `theirs`, which is another tab's, adds to what is open. */
function takeIn(theirs: Conversation): void {
  const ours = current.peek();
  if (ours.id !== theirs.id) return;
  const runs = running.peek().get(ours.id)?.id;
  const whole = merged(ours, theirs);
  for (const { id, message } of whole.turns) {
    if (id !== runs && turnOf(ours, id)?.message !== message) lives.delete(id);
  }
  current.value = whole;
}

/** The view's side of a turn's message. */
export function liveOf(turn: Turn): LiveMessage {
  const live = lives.get(turn.id) ?? new LiveMessage(turn.message);
  lives.set(turn.id, live);
  return live;
}

export function isRunning(): boolean {
  return running.value.has(current.value.id);
}

export async function openConversation(id: string): Promise<void> {
  // With what its answers need to be shown: they would be empty for a moment.
  const [conversation] = await Promise.all([load(id), loadMarkdown()]);
  if (conversation === null) return;
  show(conversation);
  const last = shownPath(conversation).at(-1);
  if (last && !running.peek().has(id)) takeUp(conversation, last);
}

/** Opens an empty conversation; the one before is in the list. */
export function startNew(preset: Preset | null = null): void {
  show(newConversation(Date.now(), preset));
}

/** Makes `conversation` the one that is shown. */
export function show(conversation: Conversation): void {
  const kept = new Set([...running.peek().values()].map(({ id }) => id));
  for (const id of lives.keys()) if (!kept.has(id)) lives.delete(id);
  current.value = conversation;
  writeStored("tab", OPEN_KEY, conversation.turns.length > 0 ? conversation.id : null);
}

/** Goes on with an answer that a reload cut, or says that it is lost. */
function takeUp(conversation: Conversation, last: Turn): void {
  if (last.message.role === "user") return failAt(conversation, last.id, "The page was closed before the answer began.");
  if (!isOpen(last.message.state)) return forgetChat(last.id);
  const answer = newRunning(conversation.id, last.message);
  if (answer.resume()) return addRunning(answer);
  if (last.reference !== null) return readAlong(conversation.id, last.id, last.reference);
  void failIfAlone(last);
}

/** Says that the answer `turn`, which nothing leads to, is lost; unless another tab receives it, and keeps it. */
async function failIfAlone(turn: Turn): Promise<void> {
  const isReceived = await library?.isReceived(turn.id);
  const conversation = current.peek();
  // What another tab has kept meanwhile has taken its place.
  if (isReceived || conversation.leaf !== turn.id || turnOf(conversation, turn.id) !== turn) return;
  failAt(conversation, turn.parent, "The page was closed before the answer was complete.");
}

/** Shows an answer that another tab or device asked for, from its beginning on. What was kept of it stays until there is more. */
export function readAlong(conversation: string, id: string, reference: AnswerReference): void {
  const known = turnOf(current.peek(), id)?.message;
  const before = known ? { text: textBefore(known), ...(known.continuedAt !== undefined && { continuedAt: known.continuedAt }) } : {};
  const answer = newRunning(conversation, { ...emptyMessage(id, "assistant"), ...before });
  addRunning(answer);
  answer.readAlong(reference);
}

/** Leaves the answer that is shown to another device. */
export function handOver(): void {
  running.peek().get(current.peek().id)?.leave();
}

/** Shows that the question `question` has no whole answer, because of `why`. */
function failAt(conversation: Conversation, question: string | null, why: string): void {
  if (question === null) return;
  const open = turnOf(conversation, conversation.leaf);
  const message = open?.message.role === "assistant" ? open.message : emptyMessage(newTurnId(), "assistant");
  const failed = { ...message, state: { is: "failed", error: why, retry: true } as const };
  const isNew = message !== open?.message;
  const now = Date.now();
  change(isNew ? addAnswer(conversation, question, failed, now) : withMessage(conversation, failed, null, now));
  lives.delete(failed.id);
}

export function newTurnId(): string {
  return newConversation(0).id;
}

/** Asks `text` after what is shown. */
export function ask(text: string, files: readonly Attachment[] = []): void {
  if (isRunning()) return;
  const conversation = withoutUnanswered(current.peek());
  answer(addQuestion(conversation, conversation.leaf, text, files, Date.now()));
}

/** Asks the question `turn` again with other words, beside the first version. */
export function editQuestion(turn: Turn, text: string): void {
  if (isRunning()) return;
  answer(addQuestion(current.peek(), turn.parent, text, turn.files, Date.now()));
}

/** Asks for another answer beside `turn`; one that failed without a word is replaced. */
export function answerAgain(turn: Turn): void {
  if (isRunning() || turn.parent === null) return;
  const { state, text } = turn.message;
  const isNothing = state.is === "failed" && text === "";
  const conversation = isNothing ? withoutTurn(current.peek(), turn.id) : current.peek();
  answer({ ...conversation, leaf: turn.parent });
}

/** Asks for an answer to the question at the end of `conversation`. */
function answer(conversation: Conversation): void {
  const question = conversation.leaf;
  if (question === null) return;
  const instructions = instructionsOf(conversation);
  const messages = requestMessages(conversation, question, instructions.system);
  const message = { ...emptyMessage(newTurnId(), "assistant"), facts: { ...NO_FACTS, model: chosenModel()?.id ?? null } };
  const asked = newRunning(conversation.id, message);
  change(addAnswer(conversation, question, message, Date.now()));
  writeStored("tab", OPEN_KEY, conversation.id);
  addRunning(asked);
  asked.ask(messages, instructions);
}

/** Whether the answer `turn` ended before its end, so that it can go on. */
export function canContinue({ message: { role, state, text, toolCalls } }: Turn): boolean {
  if (role !== "assistant" || text.trim() === "" || toolCalls.length > 0) return false;
  return state.is === "failed" || (state.is === "finished" && (state.reason === "stopped" || state.reason === "length"));
}

/** Has the model go on with the answer `turn` where it ends. */
export function continueAnswer(turn: Turn): void {
  if (isRunning() || !canContinue(turn)) return;
  const conversation = current.peek();
  const instructions = instructionsOf(conversation);
  const messages = requestMessages(conversation, turn.id, instructions.system);
  const { state } = emptyMessage(turn.id, "assistant");
  const message = { ...turn.message, state, continuedAt: turn.message.text.length };
  const asked = newRunning(conversation.id, message);
  change(withMessage(conversation, message, null, Date.now()));
  addRunning(asked);
  asked.ask(messages, instructions);
}

/** Gives the conversation that is open `preset`, or with `null` what the settings say. */
export function choosePreset(preset: Preset | null): void {
  const conversation = withPreset(current.peek(), preset, Date.now());
  if (conversation.turns.length > 0) change(conversation);
  else current.value = conversation;
}

/** Changes what the model is told in the conversation that is open. */
export function changeInstructions(change: Partial<Instructions>): void {
  const { preset } = current.peek();
  if (preset === null) changeSettings(change);
  else choosePreset({ ...preset, ...change });
}

export function stop(): void {
  running.peek().get(current.peek().id)?.stop();
}

/** Shows another version of a turn. */
export function chooseVersion(id: string): void {
  if (!isRunning()) change(showVersion(current.peek(), id));
}

/** Makes `conversation` the one that is shown, and keeps it. */
export function change(conversation: Conversation): void {
  current.value = conversation;
  void save(conversation);
}

export async function save(conversation: Conversation): Promise<void> {
  list(conversation);
  try {
    const kept = await library?.save(conversation, conversation === current.peek());
    if (!kept || kept === conversation) return;
    list(kept);
    takeIn(kept);
  } catch (error) {
    sayFailed(error);
  }
}

/** Has the list of conversations show `conversation` as it is now. */
function list({ id, title, updatedAt }: Conversation): void {
  const others = heads.peek().filter((head) => head.id !== id);
  heads.value = [{ id, title, updatedAt }, ...others].sort((one, other) => other.updatedAt - one.updatedAt);
}

/** Says why the browser does not keep conversations, or does not give them back. */
function sayFailed(error: unknown): null {
  const { name, message } = error as Error;
  const isFull = name === "QuotaExceededError";
  say(isFull ? "There is no room to keep this conversation. Export and delete old ones." : `The browser’s storage of conversations fails: ${message}`);
  return null;
}

/** The conversation `id` as it is kept; `null` where there is none that can be read. */
async function load(id: string): Promise<Conversation | null> {
  return (await library?.load(id).catch(sayFailed)) ?? null;
}

/** The conversation `id`, which may be the one that is shown. */
export async function conversationOf(id: string): Promise<Conversation | null> {
  return id === current.peek().id ? current.peek() : load(id);
}

/** Deletes a conversation; a word about it offers to undo that. */
export async function remove(id: string): Promise<void> {
  const found = await conversationOf(id);
  const answer = running.peek().get(id);
  answer?.stop();
  const conversation = found && answer ? withAnswer(found, { ...answer.live.message, state: { is: "finished", reason: "stopped" } }, null) : found;
  if (id === current.peek().id) startNew();
  heads.value = heads.peek().filter((head) => head.id !== id);
  await library?.remove(id).catch(sayFailed);
  if (!conversation) return;
  const undo = (): void => void save(conversation).then(() => openConversation(id));
  say(`Deleted “${conversation.title}”.`, { label: "Undo", act: undo });
}

/** Every conversation that is kept, one after the other. */
export async function* allConversations(): AsyncGenerator<Conversation> {
  if (library) yield* library.all();
}

/** Ids of the conversations in which `words` occur. */
export async function search(words: string): Promise<Set<string>> {
  return idsWith(words, allConversations());
}

function newRunning(conversation: string, message: Turn["message"]): RunningAnswer {
  const onTransport = (way: TransportName): void => void (transport.value = way);
  return new RunningAnswer(conversation, message, { onTransport, onProgress: handleProgress, onEnd: handleEnd });
}

function addRunning(answer: RunningAnswer): void {
  lives.set(answer.id, answer.live);
  running.value = new Map(running.peek()).set(answer.conversation, answer);
  announce("");
}

function handleProgress(answer: RunningAnswer): void {
  const last = savedAt.get(answer.id) ?? 0;
  if (Date.now() < last + SAVE_EVERY_MS) return;
  savedAt.set(answer.id, Date.now());
  void keep(answer, answer.answer?.reference ?? null);
}

/** Stores how far `answer` has come. */
async function keep(answer: RunningAnswer, reference: Turn["reference"]): Promise<void> {
  const isShown = answer.conversation === current.peek().id;
  const conversation = isShown ? current.peek() : await load(answer.conversation);
  if (!conversation || turnOf(conversation, answer.id) === null) return;
  const updated = withAnswer(conversation, answer.live.message, reference);
  const { message } = turnOf(updated, answer.id) ?? answer.live;
  // What was kept of it is shown in place of less.
  if (message !== answer.live.message && !isOpen(message.state)) lives.delete(answer.id);
  if (isShown) change(updated);
  else await save(updated);
}

/** `conversation` with how far the answer `message` has come. */
function withAnswer(conversation: Conversation, message: Message, reference: Turn["reference"]): Conversation {
  const kept = turnOf(conversation, message.id)?.message ?? message;
  return withMessage(conversation, fuller(kept, message), reference, Date.now());
}

function handleEnd(answer: RunningAnswer, error: unknown): void {
  const rest = new Map(running.peek());
  rest.delete(answer.conversation);
  running.value = rest;
  savedAt.delete(answer.id);
  failures.value = new Map(failures.peek()).set(answer.id, failureKind(error));
  void keep(answer, null);
  if (answer.live.message.state.is === "failed") lookSoon();
  if (answer.conversation === current.peek().id) announce(ending(answer));
}

/** Longest text that is read out at the end of an answer, characters. */
const MAX_READ_OUT = 1_500;

function ending({ live: { message } }: RunningAnswer): string {
  if (message.state.is === "failed") return message.state.error;
  if (message.state.is === "finished" && message.state.reason === "stopped") return "Stopped.";
  return `Answer: ${message.text.slice(0, MAX_READ_OUT)}`;
}
