// A conversation is a tree of turns: an edited question or a regenerated answer stands beside the
// first one. What is shown is one path through it, from the first turn to a leaf.
// All functions here return new values; nothing is changed in place.

import type { ContentPart } from "@loquent/client";
import { type Message, isOpen, wholeMessage } from "../message/model.js";
import type { Preset } from "./preset.js";

/** A text file that came with a question. */
export interface TextFile {
  readonly name: string;
  readonly text: string;
}

/** A picture that came with a question. */
export interface ImageFile {
  readonly name: string;
  /** A `data:` URL. */
  readonly image: string;
}

export type Attachment = TextFile | ImageFile;

export function isImage(file: Attachment): file is ImageFile {
  return "image" in file;
}

export interface Turn {
  readonly id: string;
  /** The turn before; `null` for the first of the conversation. */
  readonly parent: string | null;
  /** When it was made, Unix ms. */
  readonly at: number;
  readonly files: readonly Attachment[];
  readonly message: Message;
  /** By which an answer on its way can be read from elsewhere; `null` once it is over. */
  readonly reference: AnswerReference | null;
}

/** Names an answer at the server; `token` is the right to read it. */
export interface AnswerReference {
  readonly id: string;
  readonly token: string;
}

export interface Conversation {
  readonly id: string;
  /** `""` until there is a question to take it from. */
  readonly title: string;
  readonly createdAt: number;
  readonly updatedAt: number;
  /** Every turn after its parent. */
  readonly turns: readonly Turn[];
  /** The last turn of the path that is shown; `null` while there is none. */
  readonly leaf: string | null;
  /** The first turn that the model still sees, if the conversation has outgrown its context. */
  readonly seenFrom: string | null;
  /** What the model is told in place of the page's settings; `null`: those. */
  readonly preset: Preset | null;
  /** When the user last chose the title, Unix ms; 0: never. */
  readonly titleAt: number;
  /** When the user last chose the preset, Unix ms; 0: never. */
  readonly presetAt: number;
}

/** What the model is sent. */
export interface RequestMessage {
  readonly role: "system" | "user" | "assistant";
  readonly content: string | readonly ContentPart[];
}

const TITLE_LENGTH = 60;

/** 32 random hex digits. Not `randomUUID`, which pages on plain http:// do not have. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(now: number, preset: Preset | null = null): Conversation {
  const empty = { title: "", turns: [], leaf: null, seenFrom: null };
  return { id: newId(), ...empty, createdAt: now, updatedAt: now, preset, titleAt: 0, presetAt: preset ? now : 0 };
}

export function turnOf(conversation: Conversation, id: string | null): Turn | null {
  return conversation.turns.find((turn) => turn.id === id) ?? null;
}

/** With a title that the user has chosen. */
export function withTitle(conversation: Conversation, title: string, now: number): Conversation {
  return { ...conversation, title, updatedAt: now, titleAt: now };
}

/** With a preset that the user has chosen. */
export function withPreset(conversation: Conversation, preset: Preset | null, now: number): Conversation {
  return { ...conversation, preset, updatedAt: now, presetAt: now };
}

/** The turns that are shown, first to last. */
export function shownPath(conversation: Conversation): readonly Turn[] {
  const byId = new Map(conversation.turns.map((turn) => [turn.id, turn]));
  const path: Turn[] = [];
  let turn = conversation.leaf === null ? undefined : byId.get(conversation.leaf);
  while (turn) {
    path.push(turn);
    turn = turn.parent === null ? undefined : byId.get(turn.parent);
  }
  return path.reverse();
}

/** All versions of a turn, oldest first. */
export function versionsOf(conversation: Conversation, turn: Turn): readonly Turn[] {
  return conversation.turns.filter(({ parent, message }) => parent === turn.parent && message.role === turn.message.role);
}

/** Shows the version `id` of a turn, and below it what was said last. */
export function showVersion(conversation: Conversation, id: string): Conversation {
  let leaf = id;
  // Children come after their parents, so that one pass finds the newest line of descent.
  for (const turn of conversation.turns) if (turn.parent === leaf) leaf = newestChild(conversation, leaf);
  return { ...conversation, leaf };
}

function newestChild(conversation: Conversation, id: string): string {
  return conversation.turns.findLast(({ parent }) => parent === id)?.id ?? id;
}

/** Adds a question after `parent` and shows it. */
export function addQuestion(
  conversation: Conversation,
  parent: string | null,
  text: string,
  files: readonly Attachment[],
  now: number,
): Conversation {
  const id = newId();
  const turn: Turn = { id, parent, at: now, files, message: wholeMessage(id, "user", text), reference: null };
  const title = conversation.title || titleOf(text || files[0]?.name || "");
  return { ...conversation, title, updatedAt: now, turns: [...conversation.turns, turn], leaf: id };
}

/** Adds an answer after the question `parent` and shows it. */
export function addAnswer(conversation: Conversation, parent: string, message: Message, now: number): Conversation {
  const turn: Turn = { id: message.id, parent, at: now, files: [], message, reference: null };
  return { ...conversation, updatedAt: now, turns: [...conversation.turns, turn], leaf: turn.id };
}

/** Takes in how far the answer `message.id` has come. */
export function withMessage(
  conversation: Conversation,
  message: Message,
  reference: AnswerReference | null,
  now: number,
): Conversation {
  const turns = conversation.turns.map((turn) => (turn.id === message.id ? { ...turn, message, reference } : turn));
  return { ...conversation, turns, updatedAt: now };
}

/** How much of an answer is there. */
function extent({ text, reasoning, toolCalls }: Message): number {
  return text.length + reasoning.length + JSON.stringify(toolCalls).length;
}

/** An answer as it is `now`, with no less text than was `kept` of it: it may be read again from its beginning. */
export function fuller(kept: Message, now: Message): Message {
  const isWhole = now.state.is === "finished" && now.state.reason !== "stopped";
  return isWhole || extent(now) >= extent(kept) ? now : { ...kept, state: now.state };
}

/** Whether an answer has come further at another tab; it may have gone on after it was stopped here. */
function isFurther(theirs: Turn, ours: Turn): boolean {
  const more = extent(theirs.message) - extent(ours.message);
  if (more !== 0) return more > 0;
  const [here, there] = [ours.message.state, theirs.message.state];
  // The tab that receives an answer knows by what others can read it.
  if (isOpen(here)) return !isOpen(there) || ours.reference === null;
  return here.is === "failed" && there.is === "finished";
}

/**
 * `ours` with what another tab has added to it. An answer is taken as it has come further, and where
 * they have gone on from what is shown here, that is shown. An answer on its way makes its tab's
 * copy the newer one with every token; each thing that the user chooses therefore has a time of its own.
 */
export function merged(ours: Conversation, theirs: Conversation): Conversation {
  const others = new Map(theirs.turns.map((turn) => [turn.id, turn]));
  const turns = ours.turns.map((turn) => {
    const other = others.get(turn.id);
    return other && isFurther(other, turn) ? other : turn;
  });
  const known = new Set(turns.map(({ id }) => id));
  for (const turn of theirs.turns) {
    // Without its parent it belongs to what was taken out here.
    if (known.has(turn.id) || (turn.parent !== null && !known.has(turn.parent))) continue;
    known.add(turn.id);
    turns.push(turn);
  }
  const wentOn = ours.leaf !== null && shownPath({ ...theirs, turns }).some(({ id }) => id === ours.leaf);
  const newer = theirs.updatedAt > ours.updatedAt ? theirs : ours;
  const older = newer === theirs ? ours : theirs;
  const { title, titleAt } = older.titleAt > newer.titleAt ? older : newer;
  const { preset, presetAt } = older.presetAt > newer.presetAt ? older : newer;
  const whole = { ...newer, turns, leaf: wentOn ? theirs.leaf : ours.leaf, title, titleAt, preset, presetAt };
  const shown = shownPath(whole).map(({ id }) => id);
  // What one tab has left out stays out: no tab takes anything back in.
  const isOldersLater = older.seenFrom !== null && shown.indexOf(older.seenFrom) > shown.indexOf(newer.seenFrom ?? "");
  return isOldersLater ? { ...whole, seenFrom: older.seenFrom } : whole;
}

/** Without the turn `id` and everything below it; what is shown then ends above it, if it was shown. */
export function withoutTurn(conversation: Conversation, id: string): Conversation {
  const gone = new Set([id]);
  for (const { id, parent } of conversation.turns) if (parent !== null && gone.has(parent)) gone.add(id);
  const turns = conversation.turns.filter((turn) => !gone.has(turn.id));
  const above = turnOf(conversation, id)?.parent ?? null;
  const leaf = conversation.leaf !== null && gone.has(conversation.leaf) ? above : conversation.leaf;
  return { ...conversation, turns, leaf };
}

/** Whether a turn is an answer in which something was said. */
function saysSomething({ message }: Turn): boolean {
  return message.text.trim() !== "";
}

/**
 * Without a question at the end that was refused, failed or stopped unanswered: it never became
 * part of the conversation, and two questions in a row are refused by many models.
 */
export function withoutUnanswered(conversation: Conversation): Conversation {
  const path = shownPath(conversation);
  const last = path.at(-1);
  if (last === undefined || !isUnanswered(last)) return conversation;
  const question = last.message.role === "user" ? last : path.at(-2);
  const rest = last === question ? conversation : withoutTurn(conversation, last.id);
  if (question === undefined) return rest;
  const hasOtherAnswer = rest.turns.some(({ parent }) => parent === question.id);
  return hasOtherAnswer ? { ...rest, leaf: question.parent } : withoutTurn(rest, question.id);
}

/** Whether `turn` is a question, or an answer that is over without a word. */
function isUnanswered(turn: Turn): boolean {
  const { role, state, reasoning, toolCalls } = turn.message;
  if (role === "user") return true;
  if (isOpen(state) || saysSomething(turn)) return false;
  return state.is === "failed" || (reasoning === "" && toolCalls.length === 0);
}

/** The conversation up to `leaf` as the model is sent it: questions and answers take turns. */
export function requestMessages(conversation: Conversation, leaf: string, system: string): RequestMessage[] {
  const path = shownPath({ ...conversation, leaf });
  const from = Math.max(0, path.findIndex(({ id }) => id === conversation.seenFrom));
  const messages: RequestMessage[] = system.trim() === "" ? [] : [{ role: "system", content: system.trim() }];
  const seen = path.slice(from);
  seen.forEach((turn, at) => {
    const isQuestion = turn.message.role === "user";
    const answer = seen[at + 1];
    // A question without an answer is left out, but for the last.
    if (isQuestion && answer !== undefined && !saysSomething(answer)) return;
    if (isQuestion) messages.push({ role: "user", content: questionContent(turn) });
    else if (saysSomething(turn)) messages.push({ role: "assistant", content: turn.message.text });
  });
  return messages;
}

/** A question as the model is sent it: pictures first, as models are trained to read them. */
function questionContent(turn: Turn): RequestMessage["content"] {
  const images = turn.files.filter(isImage);
  if (images.length === 0) return questionText(turn);
  const text = questionText(turn);
  const parts = images.map(({ image }): ContentPart => ({ type: "image_url", image_url: { url: image } }));
  return text === "" ? parts : [...parts, { type: "text", text }];
}

/** A question with its text files, each fenced and named. */
export function questionText({ message, files }: Turn): string {
  const fenced = files.flatMap((file) => (isImage(file) ? [] : [file])).map(({ name, text }) => {
    const fence = fenceFor(text);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...fenced, message.text].filter((part) => part !== "").join("\n\n");
}

/** A fence longer than any in `text`. */
function fenceFor(text: string): string {
  const longest = (text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
  return "`".repeat(longest + 1);
}

/** The beginning of `text`, as a title: its first line, cut at a word. */
export function titleOf(text: string): string {
  const line = text.trim().split(/\n/, 1)[0] ?? "";
  if (line.length <= TITLE_LENGTH) return line;
  const cut = line.slice(0, TITLE_LENGTH);
  return `${cut.replace(/\s+\S*$/, "") || cut}…`;
}
