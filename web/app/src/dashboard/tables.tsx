// What has no history: streams by transport, models, keys, stages, the upstream server.

import type { ComponentChildren, VNode } from "preact";
import type { Figure, KeyFigures, KeyList, ModelFigures, StageList, TransportFigures, UpstreamFigures } from "./events.js";
import { shown } from "./figures.js";

const TRANSPORT_NAMES: Readonly<Record<string, string>> = { http: "HTTP (event streams)", quic: "QUIC", webtransport: "WebTransport" };

interface TableProps {
  readonly title: string;
  readonly columns: readonly string[];
  readonly children: ComponentChildren;
}

function Table({ title, columns, children }: TableProps): VNode {
  return (
    <section class="table">
      <h2>{title}</h2>
      {/* A region that scrolls must be reachable by keyboard. */}
      <div class="scroll" tabIndex={0} role="region" aria-label={title}>
        <table>
          <thead>
            <tr>{columns.map((name) => <th key={name} scope="col">{name}</th>)}</tr>
          </thead>
          <tbody>{children}</tbody>
        </table>
      </div>
    </section>
  );
}

export function Transports({ list }: { readonly list: readonly TransportFigures[] }): VNode {
  return (
    <Table title="Transports" columns={["Transport", "Streams", "Connections", "Lost", "RTT p50", "RTT p95"]}>
      {list.map((one) => (
        <tr key={one.name}>
          <th scope="row">{TRANSPORT_NAMES[one.name] ?? one.name}</th>
          <td>{shown(one.streams, "count")}</td>
          <td>{shown(one.connections, "count")}</td>
          <td>{shown(one.lossShare, "share")}</td>
          <td>{shown(one.rttP50Ms, "ms")}</td>
          <td>{shown(one.rttP95Ms, "ms")}</td>
        </tr>
      ))}
    </Table>
  );
}

export function Models({ models }: { readonly models: readonly ModelFigures[] }): VNode {
  return (
    <Table title="Models" columns={["Model", "State", "Loaded", "Answers"]}>
      {models.map((one) => (
        <tr key={one.name}>
          <th scope="row">{one.name}</th>
          <td>{one.state}</td>
          <td><Share of={one.share} /></td>
          <td>{shown(one.answers, "count")}</td>
        </tr>
      ))}
    </Table>
  );
}

export function Keys({ keys: { listed, others } }: { readonly keys: KeyList }): VNode {
  return (
    <Table title="Keys" columns={["Key", "Running", "Waiting", "Requests", "Refused", "Prompt tokens", "Answer tokens"]}>
      {listed.map((key) => <KeyRow key={key.name ?? ""} name={key.name ?? "without a name"} figures={key} />)}
      {others !== null && <KeyRow name={`${others.count} others`} figures={others.sum} />}
    </Table>
  );
}

function KeyRow({ name, figures }: { readonly name: string; readonly figures: KeyFigures }): VNode {
  const { running, waiting, requests, refused, promptTokens, generatedTokens } = figures;
  return (
    <tr>
      <th scope="row">{name}</th>
      {[running, waiting, requests, refused, promptTokens, generatedTokens].map((figure, at) => (
        <td key={at}>{shown(figure, "count")}</td>
      ))}
    </tr>
  );
}

export function Stages({ stages }: { readonly stages: StageList }): VNode {
  const title = stages.isConnected ? `Stages, ${shown(stages.linkDelayMs, "ms")} between them` : "Stages: not connected";
  return (
    <Table title={title} columns={["Stage", "Busy", "Batches in 10 s", "Round trip"]}>
      {stages.list.map((stage, at) => (
        <tr key={at}>
          <th scope="row">{at + 1}</th>
          <td><Share of={stage.busyShare} /></td>
          <td>{shown(stage.batches, "count")}</td>
          <td>{shown(stage.roundTripMs, "ms")}</td>
        </tr>
      ))}
    </Table>
  );
}

export function Upstream({ upstream }: { readonly upstream: UpstreamFigures }): VNode {
  return (
    <Table title="Upstream server" columns={["Server", "Busy", "Running"]}>
      <tr>
        <th scope="row">{upstream.authority}</th>
        <td><Share of={upstream.busyShare} /></td>
        <td>{shown(upstream.running, "count")}</td>
      </tr>
    </Table>
  );
}

function Share({ of }: { readonly of: Figure }): VNode {
  return (
    <span class="share">
      <meter min={0} max={1} value={of ?? 0} aria-hidden="true" />
      {shown(of, "share")}
    </span>
  );
}
