// What runs in the worker: connections by server, answers by number, told over a port.
// Nothing here touches the page.

import { Connection, type Target, type WebTransportConstructor } from "./connection.js";
import type { PlayoutChoice } from "./playout.js";
import { DatagramAnswer, type Loss, type Shown } from "./quic.js";
import type { AnswerHead, Code, RequestHead, ResponseHead } from "./message.js";
import type { WireFault } from "./wire.js";

/** From the page to the service. `server` names a server, `answer` an answer, as the page likes. */
export type Order =
  | { type: "connect"; server: string; target: Target }
  | { type: "disconnect"; server: string }
  | { type: "ask"; answer: number; server: string; head: RequestHead; body: string; pace: PlayoutChoice }
  | { type: "resume"; answer: number; server: string; id: string; token: string; offset: number; pace: PlayoutChoice }
  | { type: "read"; answer: number; count: number }
  | { type: "hidden"; hidden: boolean }
  | { type: "stop"; answer: number }
  | { type: "forget"; answer: number };

/** From the service to the page. */
export type News =
  | { type: "connected"; server: string }
  | { type: "disconnected"; server: string; why: string }
  | { type: "answered"; answer: number; head: AnswerHead }
  | { type: "refused"; answer: number; head: ResponseHead; body: string }
  | { type: "heard"; answer: number }
  | { type: "deltas"; answer: number; deltas: Shown[] }
  | { type: "complete"; answer: number }
  | { type: "failed"; answer: number; fault: WireFault | null }
  | { type: "ended"; answer: number; code: Code }
  | { type: "lost"; answer: number; offset: number; loss: Loss; rest: Shown[] };

/** The half of a `MessagePort` or worker scope that the service needs. */
export interface Port<In, Out> {
  postMessage(message: Out): void;
  onmessage: ((event: MessageEvent<In>) => void) | null;
}

/** Serves a page's orders over `port` until the worker ends. */
export function serve(
  port: Port<Order, News>,
  Transport: WebTransportConstructor | undefined,
  clock: () => number = () => performance.now(),
  random: () => number = Math.random,
): void {
  const service = new Service((news) => port.postMessage(news), Transport, clock, random);
  port.onmessage = ({ data }) => service.handleOrder(data);
}

class Service {
  readonly #connections = new Map<string, Promise<Connection>>();
  readonly #open = new Map<string, Connection>();
  /** Connections that carry what they still have, and nothing new, and their servers. */
  readonly #retired = new Map<Connection, string>();
  readonly #answers = new Map<number, DatagramAnswer>();
  #hidden = false;

  constructor(
    readonly tell: (news: News) => void,
    readonly Transport: WebTransportConstructor | undefined,
    readonly clock: () => number,
    readonly random: () => number,
  ) {}

  handleOrder(order: Order): void {
    switch (order.type) {
      case "connect":
        return void this.#connect(order.server, order.target);
      case "disconnect":
        return this.#disconnect(order.server);
      case "ask":
        return this.#with(order, (answer, connection) => answer.ask(connection, order.head, order.body));
      case "resume":
        return this.#with(order, (answer, connection) =>
          answer.resume(connection, order.id, order.token, order.offset),
        );
      case "read":
        return this.#answers.get(order.answer)?.handleRead(order.count);
      case "hidden":
        this.#hidden = order.hidden;
        for (const answer of this.#answers.values()) answer.setHidden(order.hidden);
        return;
      case "stop":
        return this.#answers.get(order.answer)?.stop();
      case "forget":
        return this.#answers.get(order.answer)?.forget();
    }
  }

  async #connect(server: string, target: Target): Promise<void> {
    try {
      if (!this.Transport) throw new Error("WebTransport is not available in workers here");
      const opening = this.#connections.get(server) ?? this.#opening(target, this.Transport);
      this.#connections.set(server, opening);
      const connection = await opening;
      if (this.#connections.get(server) !== opening) return connection.close();
      if (!this.#open.has(server)) this.#enter(server, target, connection);
      this.tell({ type: "connected", server });
    } catch (error) {
      this.#connections.delete(server);
      this.tell({ type: "disconnected", server, why: String(error) });
    }
  }

  #opening(target: Target, Transport: WebTransportConstructor): Promise<Connection> {
    return Connection.open(target, Transport, () => this.clock() * 1_000);
  }

  /** From here on `connection` is what is used for `server`. */
  #enter(server: string, target: Target, connection: Connection): void {
    this.#open.set(server, connection);
    void connection.closed.then(({ why }) => this.#handleClosed(server, connection, why));
    void connection.spent.then(() => this.#replace(server, target, connection));
    this.#leaveRetired();
  }

  /** Opens the connection that follows `spent`, which carries everything until then. */
  async #replace(server: string, target: Target, spent: Connection): Promise<void> {
    if (!this.Transport || this.#open.get(server) !== spent) return;
    const opening = this.#opening(target, this.Transport);
    const next = await opening.catch(() => null);
    if (this.#open.get(server) !== spent) return next?.close();
    this.#retired.set(spent, server);
    if (next !== null) {
      this.#connections.set(server, opening);
      return this.#enter(server, target, next);
    }
    this.#handleClosed(server, spent, "the session is used up, and no other one opens");
    this.#leaveRetired();
  }

  /** Moves answers from retired connections to those that followed, and closes what has none any more. */
  #leaveRetired(): void {
    const answers = [...this.#answers.values()];
    for (const [connection, server] of this.#retired) {
      const next = this.#open.get(server);
      for (const answer of answers) if (next && answer.connection === connection) answer.moveTo(next);
      if (answers.some((answer) => answer.connection === connection)) continue;
      this.#retired.delete(connection);
      connection.close();
    }
  }

  /** One answer has begun, or has left its path: told in the middle of what it does. */
  #handleTurn(): void {
    if (this.#retired.size > 0) queueMicrotask(() => this.#leaveRetired());
  }

  #handleClosed(server: string, connection: Connection, why: string): void {
    if (this.#open.get(server) !== connection) return;
    this.#open.delete(server);
    this.#connections.delete(server);
    this.tell({ type: "disconnected", server, why });
  }

  #disconnect(server: string): void {
    const connection = this.#open.get(server);
    this.#open.delete(server);
    this.#connections.delete(server);
    connection?.close();
    for (const [retired, of] of this.#retired) if (of === server) retired.close();
  }

  #with(
    order: { answer: number; server: string; pace: PlayoutChoice; offset?: number },
    act: (answer: DatagramAnswer, connection: Connection) => void,
  ): void {
    const connection = this.#open.get(order.server);
    if (!connection) {
      const offset = order.offset ?? 0;
      const loss = { why: "not connected", malformed: false };
      return this.tell({ type: "lost", answer: order.answer, offset, loss, rest: [] });
    }
    let answer = this.#answers.get(order.answer);
    if (!answer) {
      answer = new DatagramAnswer(this.#listener(order.answer), this.clock, order.pace, this.#hidden, this.random);
      this.#answers.set(order.answer, answer);
    }
    act(answer, connection);
  }

  #listener(answer: number): DatagramAnswer["listener"] {
    return {
      answered: (head) => {
        this.tell({ type: "answered", answer, head });
        this.#handleTurn();
      },
      refused: (head, body) => this.tell({ type: "refused", answer, head, body }),
      heard: () => this.tell({ type: "heard", answer }),
      deltas: (deltas) => this.tell({ type: "deltas", answer, deltas }),
      complete: () => this.tell({ type: "complete", answer }),
      failed: (fault) => this.tell({ type: "failed", answer, fault }),
      ended: (code) => this.tell({ type: "ended", answer, code }),
      lost: (offset, loss, rest) => {
        this.tell({ type: "lost", answer, offset, loss, rest });
        this.#handleTurn();
      },
      over: () => {
        this.#answers.delete(answer);
        this.#handleTurn();
      },
    };
  }
}
